"""Virtual time: a heap of things to happen. Equal instants keep the order in which they were asked for."""

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class Timeline:
    """`now_s` moves only in `advance`. One seed, one order: nothing here depends on a wall clock or on hashing."""

    __slots__ = ("_after", "_heap", "_order", "is_stopped", "now_s")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._after: list[Callable[[], None]] = []
        self._order = 0
        self.is_stopped = False
        self.now_s = 0.0

    def at(self, when_s: float, action: Action, about: Any = None) -> None:
        """Do `action(about)` at `when_s`, or now if that has passed."""
        self._order += 1
        heapq.heappush(self._heap, (when_s if when_s > self.now_s else self.now_s, self._order, action, about))

    @property
    def next_at_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def advance(self) -> None:
        """Go to the next thing and do it; raises IndexError when there is none."""
        self.now_s, _, action, about = heapq.heappop(self._heap)
        action(about)

    def after_this(self, action: Callable[[], None]) -> None:
        """Do `action()` once what happens now is over, before anything else happens. Only in `run`."""
        self._after.append(action)

    def run(self) -> None:
        """Go on until nothing is left or `stop` was called."""
        heap, after, pop = self._heap, self._after, heapq.heappop
        while heap and not self.is_stopped:
            self.now_s, _, action, what = pop(heap)
            action(what)
            while after:
                after.pop()()

    def stop(self) -> None:
        self.is_stopped = True
