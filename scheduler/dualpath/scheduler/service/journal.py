"""Group commit: steps append their change sets in order, one writer applies many at once, and what a step wants to say
is said only after its change set is in the store (DESIGN "state in memory, truth in Redis").
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dualpath.model.errors import Broken, OutcomeUnknown, Refused
from dualpath.scheduler.lifecycle.changes import ChangeSet
from dualpath.scheduler.ports import Clock, Tenure, TurnStore

RETRY_FIRST_S, RETRY_MAX_S = 0.02, 1.0
log = structlog.get_logger("dualpath.journal")


@dataclass(slots=True)
class _Step:
    changes: ChangeSet
    after: Callable[[], None] | None


class Journal:
    """Steps not yet in the store, in order. The run ends with Stale when another scheduler has taken over."""

    def __init__(self, store: TurnStore, tenure: Tenure, clock: Clock, *, commit_max: int, journal_max: int) -> None:
        self._store = store
        self._tenure = tenure
        self._clock = clock
        self._commit_max = commit_max
        self._journal_max = journal_max
        self._steps: deque[_Step] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._applied = asyncio.Event()
        self.commits = 0
        self.applied = 0

    @property
    def is_full(self) -> bool:
        return len(self._steps) >= self._journal_max

    def append(self, changes: ChangeSet, after: Callable[[], None] | None = None) -> None:
        """Queue a step; `after` runs once it and everything before it is in the store."""
        if not changes and after is None:
            return
        self._steps.append(_Step(changes, after))
        self._idle.clear()
        self._wake.set()

    async def room(self) -> None:
        """Return when no more than half of journal_max wait: a stream of submissions pauses here, not the store."""
        while len(self._steps) > self._journal_max // 2:
            self._applied.clear()
            await self._applied.wait()

    async def drained(self) -> None:
        """Return when every step appended so far is in the store."""
        await self._idle.wait()

    async def run(self) -> None:
        """Apply until cancelled; raises Stale if the tenure is deposed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._steps:
                batch = [self._steps[i] for i in range(min(self._commit_max, len(self._steps)))]
                await self._apply([step.changes for step in batch if step.changes])
                for step in batch:
                    self._steps.popleft()
                    if step.after is not None:
                        _run_after(step.after)
                self._applied.set()
            self._idle.set()

    async def _apply(self, changes: list[ChangeSet]) -> None:
        """Apply one batch, the very same one again for as long as the store cannot be reached."""
        wait_s = RETRY_FIRST_S
        while changes:
            try:
                await self._store.apply(changes, self._tenure)
            except (Refused, OutcomeUnknown) as error:
                log.warning("store unavailable", why=str(error), waiting=len(self._steps))
                await self._clock.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
            else:
                self.commits += 1
                self.applied += len(changes)
                return


def _run_after(after: Callable[[], None]) -> None:
    try:
        after()
    except Broken as error:
        log.error("a law does not hold", why=str(error), reason=error.reason)
