"""The asyncio loop of a run: virtual time, and nothing that only real time needs.

A run is some hundred callbacks, so what the library's loop does around each of them is a third of it: a select, files,
threads, debugging. What the scheduler's coroutines see is the same.
"""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

from dualpath.simulator.control.virtual_loop import VirtualLoop, deadlock
from dualpath.simulator.machine.timeline import Timeline

_Ts = TypeVarTuple("_Ts")


class ChaosLoop(VirtualLoop):
    """Goes on to the next event of the timeline at once while no coroutine has anything to do."""

    _ready: Any  # of BaseEventLoop: handles that run next, timers as a heap, whether to stop
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, timeline: Timeline, state: Callable[[], str]) -> None:
        super().__init__(timeline, before_jump=_nothing, after_event=_nothing, state=state)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._timeline.now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """Until somebody stops the loop: an error of a callback ends the run, which is what we look for."""
        ready, scheduled, timeline, pop = self._ready, self._scheduled, self._timeline, heapq.heappop
        while not self._stopping:
            while scheduled and scheduled[0]._cancelled:
                pop(scheduled)
            if not ready:
                self._jump(scheduled[0].when() - timeline.now_s if scheduled else None)
            while scheduled and scheduled[0].when() <= timeline.now_s:
                timer = pop(scheduled)
                timer._scheduled = False  # type: ignore[attr-defined]
                if not timer._cancelled:
                    ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._context.run(handle._callback, *handle._args)

    def _jump(self, timeout_s: float | None) -> None:
        timeline, ready = self._timeline, self._ready
        until_s = float("inf") if timeout_s is None else timeline.now_s + timeout_s
        while not ready:
            if timeline.is_stopped:
                self.stopped.set()
                return
            next_at_s = timeline.next_at_s
            if next_at_s is None or next_at_s > until_s:
                if timeout_s is None:
                    raise deadlock(timeline.now_s, self._state())
                timeline.now_s = until_s
                return
            timeline.advance()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers go when their time comes."""

    def _make_self_pipe(self) -> None:
        """No other thread ever wakes this loop."""

    def _close_self_pipe(self) -> None:
        """There is none."""


def _nothing() -> None:
    pass
