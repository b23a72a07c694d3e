"""A PE group: its engines step in lockstep, as expert parallelism makes them (paper §6.2, §8).

step = max over engines of (attention, KV through the compute NIC) + mean over engines of FFN + base
"""

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dualpath.engine_agent.batch.quota import AttentionCost, PrefillItem, cut_to_fit, cut_to_progress
from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.machine.turns import SimTurn

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds of one forward on one engine.

    attention        of the whole forward, from (cached, bsz); the compute quota bounds it
    ffn_turn_s       per turn, spread over its chunks
    ffn_token_s      per token computed
    step_s           per step whatever is in it
    quota_s          compute quota (paper §6.2)
    cnic_tokens_per_s  KV that the engine's compute NIC moves while the layers run; the slower of both counts
    """

    attention: AttentionCost
    ffn_turn_s: float
    ffn_token_s: float
    step_s: float
    quota_s: float
    cnic_tokens_per_s: float = float("inf")


class PrefillEngine:
    """Turns whose hit KV has come (`runnable`, first in first out) and turns for which it is on its way."""

    __slots__ = ("arriving", "runnable", "slowness")

    def __init__(self, slowness: float) -> None:
        self.runnable: deque[SimTurn] = deque()
        self.arriving: list[tuple[float, int, SimTurn]] = []
        self.slowness = slowness  # 1.0: as the cost model says; 2.0: a straggler that takes twice as long


class PrefillUnit:
    """Engines that step together: a whole group under expert parallelism, one engine without it.

    group, first       number of the group and of the first engine
    step_*             of each step: when it began, its longest and its mean attention time over the engines
    """

    def __init__(
        self,
        group: int,
        first: int,
        slowness: Sequence[float],
        timeline: Timeline,
        cost: PrefillCost,
        *,
        prefilled: Callable[[list[SimTurn]], None],
        fetch: Callable[[int], None],
        step_begins: Callable[[int], None],
    ) -> None:
        self.group = group
        self.first = first
        self.engines = [PrefillEngine(factor) for factor in slowness]
        self.step_at_s, self.step_max_s, self.step_mean_s = array("d"), array("f"), array("f")
        self.busy_s = 0.0  # in steps
        self._timeline = timeline
        self._cost = cost
        self._prefilled = prefilled
        self._fetch = fetch
        self._step_begins = step_begins
        self._stepping = False
        self._wake_at_s = NEVER

    @property
    def is_idle(self) -> bool:
        return not self._stepping

    def enqueue(self, turn: SimTurn, ready_at_s: float) -> None:
        """The turn's hit KV will be there at `ready_at_s`."""
        heapq.heappush(self.engines[turn.pe - self.first].arriving, (ready_at_s, turn.arrival, turn))
        if not self._stepping and ready_at_s < self._wake_at_s:
            self._wake_at_s = ready_at_s
            self._timeline.at(ready_at_s, self._wake, ready_at_s)

    def _wake(self, wake_at_s: float) -> None:
        if not self._stepping and wake_at_s == self._wake_at_s:
            self._wake_at_s = NEVER
            self._step()

    def _step(self, _: None = None) -> None:
        now = self._timeline.now_s
        cost = self._cost
        batch: list[tuple[PrefillEngine, SimTurn, int]] = []
        attention: list[float] = []
        ffn = 0.0
        for engine in self.engines:
            arriving, runnable = engine.arriving, engine.runnable
            while arriving and arriving[0][0] <= now:
                runnable.append(heapq.heappop(arriving)[2])
            spent = 0.0
            if runnable:
                moved = 0
                for turn, bsz, seconds in self._pack(runnable, now):
                    batch.append((engine, turn, bsz))
                    spent += seconds
                    moved += turn.prompt_tokens - turn.remaining_tokens + bsz
                    ffn += engine.slowness * (cost.ffn_turn_s * (bsz / turn.miss_tokens) + cost.ffn_token_s * bsz)
                spent = engine.slowness * max(spent, moved / cost.cnic_tokens_per_s)
            attention.append(spent)
        if not batch:
            self._stepping = False
            next_at = min((engine.arriving[0][0] for engine in self.engines if engine.arriving), default=NEVER)
            if next_at < NEVER:
                self._wake_at_s = next_at
                self._timeline.at(next_at, self._wake, next_at)
            return
        self._stepping = True
        longest = max(attention)
        self.step_at_s.append(now)
        self.step_max_s.append(longest)
        self.step_mean_s.append(sum(attention) / len(attention))
        self._step_begins(self.group)
        step_s = longest + ffn / len(self.engines) + cost.step_s
        self.busy_s += step_s
        self._timeline.at(now + step_s, self._end, batch)

    def _pack(self, runnable: deque[SimTurn], now: float) -> list[tuple[SimTurn, int, float]]:
        """The engine's share of the next forward: whole turns while they fit, then the agent's own rule for the cut."""
        quota_s, seconds_of = self._cost.quota_s, self._cost.attention.seconds
        packed: list[tuple[SimTurn, int, float]] = []
        spent = 0.0
        for turn in runnable:
            seconds = seconds_of(turn.prompt_tokens - turn.remaining_tokens, turn.remaining_tokens)
            if spent + seconds > quota_s:
                break
            spent += seconds
            packed.append((turn, turn.remaining_tokens, seconds))
        if len(packed) < len(runnable):
            turn = runnable[len(packed)]
            bsz = self._cut(turn, spent, is_first=not packed)
            if bsz:
                packed.append((turn, bsz, seconds_of(turn.prompt_tokens - turn.remaining_tokens, bsz)))
        for turn, _, _ in packed:
            if turn.remaining_tokens == turn.miss_tokens:
                turn.prefilling_at_s = now
        return packed

    def _cut(self, turn: SimTurn, spent_s: float, *, is_first: bool) -> int:
        """How much of the first turn that does not fit whole: as `pack_batch` of the agent."""
        cost = self._cost
        item = PrefillItem(turn.turn_id, 1, turn.prompt_tokens - turn.remaining_tokens, turn.remaining_tokens)
        bsz = cut_to_fit(item, spent_s, cost.quota_s, cost.attention)
        return cut_to_progress(item, cost.attention) if bsz == 0 and is_first else bsz

    def _end(self, batch: list[tuple[PrefillEngine, SimTurn, int]]) -> None:
        done: list[SimTurn] = []
        for engine, turn, bsz in batch:
            turn.remaining_tokens -= bsz
            if turn.remaining_tokens == 0:
                engine.runnable.popleft()
                done.append(turn)
        if done:
            self._prefilled(done)
        self._fetch(self.group)
        # as an event of its own: what this fetch brings may be ready at once, and then belongs to the next step
        self._timeline.at(self._timeline.now_s, self._step)
