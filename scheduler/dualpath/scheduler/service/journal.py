"""Group commit: what steps change is gathered turn by turn, one writer applies many turns at once, and what a step
wants to say is said only after its change is in the store (DESIGN "state in memory, truth in Redis").

While one call is under way, the steps of a turn add up: what is written then is where the turn stands by then
(lifecycle.unstored). So the busier the store, the less each turn costs it.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import Protocol

import structlog

from dualpath.model.errors import Broken, OutcomeUnknown, Refused
from dualpath.model.ids import TurnId
from dualpath.scheduler.lifecycle.changes import ChangeSet
from dualpath.scheduler.ports import Clock, Tenure, TurnStore

RETRY_FIRST_S, RETRY_MAX_S = 0.02, 1.0
After = Callable[[], None]
log = structlog.get_logger("dualpath.journal")


class Unstored(Protocol):
    """What there is to write: the ledger."""

    def unstored(self, turn_id: TurnId) -> ChangeSet: ...

    def unstored_contexts(self) -> ChangeSet: ...


class Journal:
    """Turns with changes that are not in the store yet, oldest first. The run ends with Stale when another scheduler
    has taken over.

    commit_max   turns in one call to the store
    journal_max  turns that may wait for it; see `is_full`
    """

    def __init__(
        self,
        store: TurnStore,
        tenure: Tenure,
        clock: Clock,
        ledger: Unstored,
        *,
        commit_max: int,
        journal_max: int,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._tenure = tenure
        self._clock = clock
        self._commit_max = commit_max
        self._journal_max = journal_max
        self._waiting: dict[TurnId, list[tuple[int, After]] | None] = {}  # what to say once the turn is stored
        self._under_way: list[TurnId] = []  # turns of the call that is being made
        self._steps = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._applied = asyncio.Event()
        self.commits = 0
        self.applied = 0

    @property
    def is_full(self) -> bool:
        return len(self._waiting) + len(self._under_way) >= self._journal_max

    def append(self, turn_id: TurnId, after: After | None = None) -> None:
        """A turn has changed; `after` runs once that is in the store, in the order of the steps."""
        waiting = self._waiting
        if turn_id not in waiting:
            waiting[turn_id] = None
            if not self._wake.is_set():
                self._idle.clear()
                self._wake.set()
        if after is not None:
            self._steps += 1
            says = waiting[turn_id]
            if says is None:
                waiting[turn_id] = [(self._steps, after)]
            else:
                says.append((self._steps, after))

    async def room(self) -> None:
        """Return when no more than half of journal_max wait: a stream of submissions pauses here, not the store."""
        while len(self._waiting) > self._journal_max // 2:
            self._applied.clear()
            await self._applied.wait()

    async def stored(self, turn_id: TurnId) -> None:
        """Return when the turn is in the store as it is now, whatever else there is to write."""
        if turn_id not in self._waiting and turn_id not in self._under_way:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append(turn_id, lambda: None if done.done() else done.set_result(None))
        await done

    async def drained(self) -> None:
        """Return when nothing waits for the store. Under load that may be never."""
        await self._idle.wait()

    async def run(self) -> None:
        """Apply until cancelled; raises Stale if the tenure is deposed."""
        while True:
            await self._wake.wait()
            while self._waiting:
                changes, after = self._take()
                await self._apply(changes)
                self._under_way = []
                for step in after:
                    _run_after(step)
                self._applied.set()
            self._wake.clear()
            self._idle.set()

    def _take(self) -> tuple[list[ChangeSet], list[After]]:
        """The oldest turns: what is to be written of them as they are now, and what is to be said then."""
        waiting, unstored = self._waiting, self._ledger.unstored
        turns = self._under_way = list(islice(waiting, self._commit_max))
        changes = [self._ledger.unstored_contexts()]
        after: list[tuple[int, After]] = []
        for turn_id in turns:
            says = waiting.pop(turn_id)
            if says is not None:
                after += says
            changes.append(unstored(turn_id))
        after.sort(key=itemgetter(0))
        return [change for change in changes if change], [say for _, say in after]

    async def _apply(self, changes: list[ChangeSet]) -> None:
        """Apply one batch, the very same one again for as long as the store cannot be reached."""
        wait_s = RETRY_FIRST_S
        while changes:
            try:
                await self._store.apply(changes, self._tenure)
            except (Refused, OutcomeUnknown) as error:
                log.warning("store unavailable", why=str(error), waiting=len(self._waiting))
                await self._clock.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                self.commits += 1
                self.applied += len(changes)
                return


def _run_after(after: After) -> None:
    try:
        after()
    except Broken as error:
        log.error("a law does not hold", why=str(error), reason=error.reason)
