"""A submitted turn, as its submitter sees it."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from dualpath.model.errors import DualPathError
from dualpath.model.ids import ROOT_KEY, BlockKey
from dualpath.model.turn import ReadSide, TurnResult, TurnState

EVENTS_MAX = 64  # events kept for a reader that is slow; the result is never lost


@dataclass(frozen=True, slots=True)
class TurnSpec:
    """What to submit. `tokens` follow the context; without a context they are the whole prompt.

    context_key, context_tokens  from the result of the turn before (Session does this for you)
    forced_tokens                generate exactly max_new_tokens
    deadline_s                   from acceptance; 0 leaves it to the scheduler
    priority                     0 to 3; each step doubles the tenant's share for this turn where the order is fair
    """

    tokens: tuple[int, ...]
    max_new_tokens: int
    session_id: str = ""
    context_key: BlockKey = ROOT_KEY
    context_tokens: int = 0
    forced_tokens: bool = False
    stop_tokens: tuple[int, ...] = ()
    deadline_s: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """One step of a turn, with the time it was heard (this process's monotonic clock)."""

    turn_id: str
    attempt: int
    state: TurnState
    at_s: float
    first_token: bool = False
    pe: str = ""
    de: str = ""
    de_address: str = ""
    read_side: ReadSide | None = None
    result: TurnResult | None = None


@dataclass(eq=False)
class TurnHandle:
    """Await `result()`, or read `events()` as they come."""

    idempotency_key: str
    spec: TurnSpec
    submitted_at_s: float = field(default_factory=time.monotonic)
    turn_id: str = ""
    accepted_at_s: float | None = None
    first_token_at_s: float | None = None
    ended_at_s: float | None = None
    last_event: TurnEvent | None = None
    refusals: int = 0
    results_seen: int = 0  # answers heard; more than one would break the promise of one result per turn
    _events: "asyncio.Queue[TurnEvent | None]" = field(default_factory=lambda: asyncio.Queue(EVENTS_MAX))
    _outcome: "asyncio.Future[TurnResult]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_done(self) -> bool:
        return self._outcome.done()

    async def result(self) -> TurnResult:
        """The turn's result, whatever its end; raises Rejected or Refused where it was not accepted."""
        return await asyncio.shield(self._outcome)

    async def events(self) -> AsyncIterator[TurnEvent]:
        """Events to the end. A slow reader loses the oldest ones."""
        while True:
            event = await self._events.get()
            if event is None:
                return
            yield event

    def take(self, event: TurnEvent) -> None:
        """Called by the client for each event it hears."""
        self.turn_id = event.turn_id
        self.last_event = event
        if self.accepted_at_s is None:
            self.accepted_at_s = event.at_s
        if event.first_token and self.first_token_at_s is None:
            self.first_token_at_s = event.at_s
        self._push(event)
        if event.result is not None:
            self.results_seen += 1
            self.ended_at_s = event.at_s
            if not self._outcome.done():
                self._outcome.set_result(event.result)
            self._push(None)

    def fail(self, error: DualPathError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)
            self._outcome.exception()  # seen: the caller may look at events only
        self._push(None)

    def _push(self, event: TurnEvent | None) -> None:
        if self._events.full():
            self._events.get_nowait()
        self._events.put_nowait(event)
