"""A decode engine: continuous batching, one step for all, TPOT = base + per turn x batch + per token x
their contexts (paper §8).

Steps are not simulated one by one. A token clock runs at 1 / TPOT; a turn of n tokens ends when the clock has moved n,
so each turn costs one or two events however long it generates.
"""

import heapq
from collections.abc import Callable

from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.machine.turns import SimTurn

NEVER = float("inf")
CLOCK_SLACK = 1e-6  # tokens; what rounding may leave of a turn


class DecodeEngine:
    """Turns that generate on one GPU."""

    __slots__ = ("_armed_at_s", "_base_s", "_clock", "_ends", "_finished", "_per_token_s", "_per_turn_s", "_step_s",
                 "_timeline", "_updated_at_s", "batch_max", "held_tokens",
                 "number", "peak_tokens")  # fmt: skip

    def __init__(
        self,
        number: int,
        timeline: Timeline,
        finished: Callable[[SimTurn], None],
        *,
        base_s: float,
        per_turn_s: float,
        per_token_s: float,
    ) -> None:
        self.number = number
        self.batch_max = 0
        self.held_tokens = self.peak_tokens = 0  # prompt and generation of the turns that decode here
        self._timeline = timeline
        self._finished = finished
        self._base_s = base_s
        self._per_turn_s = per_turn_s
        self._per_token_s = per_token_s
        self._step_s = base_s  # TPOT as it is now
        self._clock = 0.0
        self._updated_at_s = 0.0
        self._ends: list[tuple[float, int, SimTurn]] = []
        self._armed_at_s = NEVER

    def start(self, turn: SimTurn) -> None:
        """The first token came from the prefill; the others are generated here."""
        now = self._timeline.now_s
        ends = self._ends
        if ends:
            self._clock += (now - self._updated_at_s) / self._step_s
        self._updated_at_s = now
        self._step_s += self._per_turn_s + self._per_token_s * turn.prompt_tokens
        heapq.heappush(ends, (self._clock + turn.max_new_tokens - 1, turn.arrival, turn))
        if len(ends) > self.batch_max:
            self.batch_max = len(ends)
        self.held_tokens += turn.prompt_tokens + turn.max_new_tokens
        if self.held_tokens > self.peak_tokens:
            self.peak_tokens = self.held_tokens
        # a turn that starts later only delays the others, so an armed look can be early, never late
        when = now + (ends[0][0] - self._clock) * self._step_s
        if when < self._armed_at_s:
            self._armed_at_s = when
            self._timeline.at(when, self._look, when)

    def _look(self, armed_at_s: float) -> None:
        """End what has run out; then look again when the next turn could end."""
        if armed_at_s != self._armed_at_s:
            return  # a nearer look was armed after this one, and has passed
        now = self._timeline.now_s
        ends = self._ends
        clock = self._clock = self._clock + (now - self._updated_at_s) / self._step_s
        self._updated_at_s = now
        self._armed_at_s = NEVER
        while ends and ends[0][0] <= clock + CLOCK_SLACK:
            turn = heapq.heappop(ends)[2]
            self._step_s -= self._per_turn_s + self._per_token_s * turn.prompt_tokens
            self.held_tokens -= turn.prompt_tokens + turn.max_new_tokens
            self._finished(turn)
        if ends:
            when = now + (ends[0][0] - clock) * self._step_s
            self._armed_at_s = when
            self._timeline.at(when, self._look, when)
        else:
            self._step_s = self._base_s  # what rounding left over
