"""What a run observed: times of every turn, work of every NIC and engine, as one summary with units in its names."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.prefill import PrefillUnit
from dualpath.simulator.machine.turns import SimTurn

PERCENTILES = (50, 90, 99)
FIRST_PART = 0.05  # of a run: where attention is compared over engines (paper Fig. 15)

PARTS = ("scheduling", "buffer", "read", "prefill")


class Recorder:
    """Keeps what the summary needs of each turn, 4 bytes a value.

    warm_up_s  turns submitted before are not counted
    """

    def __init__(self, machine: Machine, *, warm_up_s: float = 0.0) -> None:
        self._machine = machine
        self._timeline = machine.timeline
        self._warm_up_s = warm_up_s
        self.turns = self.hit_tokens = self.prompt_tokens = self.gen_tokens = 0
        self._hbm_token_s = self._decode_turn_s = self._hbm_wait_s = 0.0
        self._ttft_s, self._ttst_s, self._tpot_s = array("f"), array("f"), array("f")
        self._parts = {part: array("f") for part in PARTS}
        self._see_ttft, self._see_ttst, self._see_tpot = (
            values.append for values in (self._ttft_s, self._ttst_s, self._tpot_s)
        )
        self._see_parts = tuple(values.append for values in self._parts.values())

    def seen(self, turn: SimTurn) -> None:
        """A turn has ended now."""
        self.turns += 1
        self.hit_tokens += turn.hit_tokens
        self.prompt_tokens += turn.prompt_tokens
        gen = turn.max_new_tokens
        self.gen_tokens += gen
        now, planned = self._timeline.now_s, turn.planned_at_s
        self._hbm_token_s += (now - planned) * (turn.prompt_tokens + gen)
        self._decode_turn_s += now - turn.decoding_at_s
        submitted = turn.submitted_at_s
        if submitted < self._warm_up_s:
            return
        self._hbm_wait_s += planned - turn.placed_at_s
        granted, ready = turn.granted_at_s, turn.ready_at_s
        prefilled = turn.prefilled_at_s
        self._see_ttft(prefilled - submitted)
        if gen > 1:
            decoding = turn.decoding_at_s
            tpot = (now - decoding) / (gen - 1)
            self._see_tpot(tpot)
            self._see_ttst(decoding - prefilled + tpot)
        see_scheduling, see_buffer, see_read, see_prefill = self._see_parts
        see_scheduling(planned - submitted)
        see_buffer(granted - planned)
        see_read(ready - granted)
        see_prefill(prefilled - ready)

    def summary(self, *, ended_sessions: int) -> "Summary":
        """Everything so far; `jct_s` is the time by now."""
        machine = self._machine
        now = machine.timeline.now_s
        decode_s = now * len(machine.decode)
        counted = len(self._ttft_s)
        return Summary(
            jct_s=now,
            sessions=ended_sessions,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            gen_tokens=self.gen_tokens,
            ttft_s=Spread.of(self._ttft_s),
            ttst_s=Spread.of(self._ttst_s),
            tpot_s=Spread.of(self._tpot_s),
            parts_s={part: Spread.of(values) for part, values in self._parts.items()},
            nic_busy=tuple(nic.busy_s / now if now else 0.0 for nic in machine.nics),
            nic_read_tokens=tuple(nic.read_tokens for nic in machine.nics),
            nic_max_over_avg=max_over_avg([nic.window_tokens for nic in machine.nics]),
            attention_max_over_avg=attention_balance(machine.prefill, FIRST_PART * now),
            prefill_busy=tuple(unit.busy_s / now if now else 0.0 for unit in machine.prefill),
            buffer_peak_tokens=max((gate.peak_tokens for gate in machine.gates), default=0),
            hbm_peak_tokens=max((engine.peak_tokens for engine in machine.decode), default=0),
            decode_batch_max=max((engine.batch_max for engine in machine.decode), default=0),
            hbm_promised_mean_tokens=self._hbm_token_s / decode_s if decode_s else 0.0,
            decode_batch_mean=self._decode_turn_s / decode_s if decode_s else 0.0,
            hbm_wait_mean_s=self._hbm_wait_s / counted if counted else 0.0,
            counted_turns=counted,
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of one kind of time, in seconds; zeros when nothing was seen."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: "array[float]") -> "Spread":
        if not values:
            return cls()
        seen = np.frombuffer(values, dtype=np.float32)
        return cls(float(seen.mean(dtype=np.float64)), *(float(p) for p in np.percentile(seen, PERCENTILES)))


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers; instants and spans in seconds, amounts in tokens.

    jct_s             time until all sessions had ended (or until the run was stopped)
    parts_s           TTFT cut at plan, buffer grant and arrival of the hit KV (paper Fig. 11)
    nic_busy          share of the run that each node's storage NIC was reading
    nic_max_over_avg  busiest storage NIC over their mean, over time windows by traffic (paper Fig. 14)
    prefill_busy      share of the run that each PE group (engine, without lockstep) was in a step
    *_peak_tokens     most that one DE buffer (PE HBM, without layerwise) and one decode engine held
    hbm_promised_mean_tokens, decode_batch_mean  of a decode engine over the run, by the turns that ended: tokens
                      promised to turns, from plan to end, and turns that it decoded at once
    hbm_wait_mean_s   the part of parts_s["scheduling"] after the PE is chosen: for room on a decode engine
    counted_turns     turns that count for latencies
    attention_max_over_avg  the same for attention seconds of a PE group's step, early in the run (paper Fig. 15)
    """

    jct_s: float
    sessions: int
    turns: int
    prompt_tokens: int
    hit_tokens: int
    gen_tokens: int
    ttft_s: Spread
    ttst_s: Spread
    tpot_s: Spread
    parts_s: dict[str, Spread]
    nic_busy: tuple[float, ...]
    nic_read_tokens: tuple[int, ...]
    nic_max_over_avg: float
    attention_max_over_avg: float
    prefill_busy: tuple[float, ...] = ()
    buffer_peak_tokens: int = 0
    hbm_peak_tokens: int = 0
    decode_batch_max: int = 0
    hbm_promised_mean_tokens: float = 0.0
    decode_batch_mean: float = 0.0
    hbm_wait_mean_s: float = 0.0
    counted_turns: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "hit_rate": self.hit_rate}


def max_over_avg(windows: Sequence[Sequence[int]]) -> float:
    """Busiest over mean, averaged over windows by their traffic; 1 for none. windows[n][w]: tokens of NIC n.

    By traffic, so that the end of a run, when few sessions are left, does not outweigh the rest.
    """
    length = max((len(of_nic) for of_nic in windows), default=0)
    table = np.zeros((len(windows), length))
    for row, of_nic in zip(table, windows, strict=True):
        row[: len(of_nic)] = of_nic
    total = float(table.sum())
    return float(table.max(axis=0).sum()) * len(windows) / total if total else 1.0


def attention_balance(units: Sequence[PrefillUnit], until_s: float) -> float:
    """Longest over mean attention time of the engines of a PE group, over the steps before `until_s`; 1 for none."""
    longest = mean = 0.0
    for unit in units:
        steps = bisect_left(unit.step_at_s, until_s)
        longest += sum(unit.step_max_s[:steps])
        mean += sum(unit.step_mean_s[:steps])
    return longest / mean if mean else 1.0
