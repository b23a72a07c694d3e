"""A bounded store of tokens that turns wait for in order: a DE buffer, or the HBM of a PE without layerwise prefill."""

from collections import deque
from collections.abc import Callable

from dualpath.simulator.machine.turns import SimTurn


class Gate:
    """First come, first served; nobody overtakes the head, so a large turn is not starved by small ones."""

    __slots__ = ("_granted", "_waiting", "capacity_tokens", "peak_tokens", "used_tokens")

    def __init__(self, capacity_tokens: int, granted: Callable[[SimTurn], None]) -> None:
        self.capacity_tokens = capacity_tokens
        self.used_tokens = self.peak_tokens = 0
        self._granted = granted
        self._waiting: deque[SimTurn] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, turn: SimTurn) -> None:
        """Grant the turn's prompt, now or when those before it have left."""
        if self._waiting or self.used_tokens + turn.prompt_tokens > self.capacity_tokens:
            self._waiting.append(turn)
        else:
            used = self.used_tokens = self.used_tokens + turn.prompt_tokens
            if used > self.peak_tokens:
                self.peak_tokens = used
            self._granted(turn)

    def leave(self, turn: SimTurn) -> None:
        """Give the turn's prompt back and let in who waits and fits."""
        self.used_tokens -= turn.prompt_tokens
        waiting = self._waiting
        while waiting and self.used_tokens + waiting[0].prompt_tokens <= self.capacity_tokens:
            entering = waiting.popleft()
            used = self.used_tokens = self.used_tokens + entering.prompt_tokens
            if used > self.peak_tokens:
                self.peak_tokens = used
            self._granted(entering)
