"""An asyncio loop in virtual time: the scheduler's own coroutines run on it unchanged.

Whenever nothing is ready, time jumps to whatever comes first: the machine's next event or a timer of the service. Each
event of the machine gets the loop to itself until everything it caused has settled.
"""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from dualpath.model.errors import Broken
from dualpath.simulator.machine.timeline import Timeline

IDLE_MAX_S = 600.0  # virtual seconds in which only the service's own timers run: nothing will ever happen again


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs coroutines between the events of `timeline`, until it is stopped.

    before_jump  called when everything has settled, before time moves on
    after_event  called after each event of the timeline
    state        says what is open, for the error when nothing is left to happen
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        before_jump: Callable[[], None],
        after_event: Callable[[], None],
        state: Callable[[], str],
    ) -> None:
        self._timeline = timeline
        self._before_jump = before_jump
        self._after_event = after_event
        self._state = state
        self._last_event_at_s = 0.0
        self.stopped = asyncio.Event()
        super().__init__(_NoSelector(self._jump))

    def time(self) -> float:
        return self._timeline.now_s

    def _jump(self, timeout_s: float | None) -> None:
        """Nothing is ready: go to what comes first. `timeout_s` is the time to the service's next timer.

        raises  Broken(DEADLOCK) where nothing but the service's own timers is left
        """
        timeline = self._timeline
        if timeline.is_stopped:
            self.stopped.set()
            return
        self._before_jump()
        next_at_s = timeline.next_at_s
        timer_at_s = None if timeout_s is None else timeline.now_s + timeout_s
        if next_at_s is not None and (timer_at_s is None or next_at_s <= timer_at_s):
            timeline.advance()
            self._last_event_at_s = timeline.now_s
            self._after_event()
        elif timer_at_s is not None and timer_at_s - self._last_event_at_s <= IDLE_MAX_S:
            timeline.now_s = timer_at_s
        else:
            raise deadlock(timeline.now_s, self._state())


def deadlock(now_s: float, state: str) -> Broken:
    """Turns are open and nothing can ever move them."""
    return Broken(f"deadlock at {now_s:.3f} s: nothing is left to happen; {state}", reason="DEADLOCK")


class _NoSelector(selectors.BaseSelector):
    """No files, no signals, no threads: a wait is a jump in time."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        self._jump = jump
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return self._keys[fd]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys
