"""The capacity plan: which split of nodes into prefill and decode serves a workload best, what bounds each, and how
much DE buffer and decode HBM the best one needs (paper §4.2 beside what the simulator says)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualpath.model.errors import Rejected
from dualpath.simulator.machine.shape import Costs, Shape
from dualpath.simulator.profiles.bottleneck import FreeRange, Hardware, free_range, loads
from dualpath.simulator.profiles.profile import load_profile, parse_shape
from dualpath.simulator.runs.case import Case
from dualpath.simulator.runs.pool import Result, Told, objective_s, run_cases
from dualpath.simulator.scenario import check_feasible

APS_STEP = 0.05
APS_MAX = 12.8
SIZE_HALVINGS = 3  # down to an eighth; where one fails,
SIZE_BISECTIONS = 3  # so often between it and the last that did
SIZE_SLACK = 0.02  # a smaller buffer or HBM will do while the result stays within this
BUSY_ENOUGH = 0.6  # what is busy less than this bounds nothing
BUSY_ALL = 0.9  # what is busy more than this bounds beside a full decode HBM too
BUFFER_WAIT_ENOUGH = 0.5  # share of TTFT
HBM_WAIT_ENOUGH = 0.25  # share of TTFT; less than for the buffer: a turn placed on a PE keeps others from it meanwhile
AT_SLO = 0.9  # a mean TPOT of this share of the SLO leaves no room for more
SLOW_DECODE = 1.3  # TPOT over that of a turn alone


Run = Callable[[Sequence[Case]], Mapping[Case, Result]]


@dataclass(frozen=True, slots=True)
class Slo:
    """Means in seconds; 0: not asked for. raises Rejected for what is no span of time"""

    ttft_s: float = 0.0
    tpot_s: float = 0.0

    def __post_init__(self) -> None:
        for name, wanted in (("slo_ttft_s", self.ttft_s), ("slo_tpot_s", self.tpot_s)):
            if not 0 <= wanted < math.inf:
                raise Rejected(f"{name} is {wanted}, wanted a finite number of at least 0", field=name)

    def missed(self, result: Result) -> list[str]:
        """What is missed, with the value found and the value wanted; a run in which no turn counts misses all."""
        if self and not result["counted_turns"]:
            return ["no turn that counts for latencies ended, wanted at least one"]
        return [
            f"mean {label} is {found:.3f} s, wanted at most {wanted:g} s"
            for label, found, wanted in self._pairs(result)
            if found > wanted
        ]

    def overshoot(self, result: Result) -> float:
        """The largest of found over wanted; above 1 it is missed, 0 if nothing is asked for."""
        if self and not result["counted_turns"]:
            return math.inf
        return max((found / wanted for _, found, wanted in self._pairs(result)), default=0.0)

    def _pairs(self, result: Result) -> list[tuple[str, float, float]]:
        asked = (("TTFT", "ttft_s", self.ttft_s), ("TPOT", "tpot_s", self.tpot_s))
        return [(label, result[name]["mean"], wanted) for label, name, wanted in asked if wanted]

    def __bool__(self) -> bool:
        return bool(self.ttft_s or self.tpot_s)


@dataclass(frozen=True, slots=True)
class Split:
    """A split and its run.

    score      smaller is better: JCT, with arrivals mean TTFT, in seconds
    missed     of the SLO; overshoot: the worst of found over wanted
    aps        sessions per second that it was given; 0: all at once
    """

    case: Case
    result: Result
    score: float
    bottleneck: str
    why: str
    missed: Sequence[str] = ()
    overshoot: float = 0.0
    aps: float = 0.0

    @property
    def shape(self) -> Shape:
        return parse_shape(self.case.shape)


@dataclass(frozen=True, slots=True)
class Size:
    """A capacity of the best split: what the profile has, the peak in use, and the least that will do.

    scores  of each size tried; None where the SLO is missed or the largest turn does not fit
    """

    name: str
    given_tokens: int
    peak_tokens: int
    enough_tokens: int
    scores: Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Splits in order of their score, those within the SLO first.

    free      the bottleneck-free range by the traffic alone; hardware: of what
    """

    splits: Sequence[Split]
    sizes: Sequence[Size]
    hardware: Hardware = field(default_factory=Hardware)

    @property
    def free(self) -> FreeRange:
        return free_range(self.hardware)

    def overloaded(self, shape: Shape) -> dict[str, float]:
        """Resources that the traffic alone overloads once every storage NIC is busy, and their loads (paper §4.2)."""
        found = loads(shape.prefill_nodes, shape.decode_nodes, self.hardware)
        return {resource.value: load for resource, load in found.items() if load > 1}

    @property
    def best(self) -> Split:
        return self.splits[0]

    def reasons(self) -> list[str]:
        """Why the best is the best, one sentence per other split."""
        best = self.best
        name = best.case.shape
        lines = [f"{name} is bound by {best.bottleneck}: {best.why}."]
        for other in self.splits[1:]:
            beaten, how = other.case.shape, f"{name} beats {other.case.shape}"
            if other.missed and not best.missed:
                how = f"{name} meets the SLO, {beaten} does not"
            elif best.aps != other.aps:
                how = f"{name} serves {best.aps:g} sessions per second, {beaten} {other.aps:g}"
            elif best.missed:
                how = f"{name} misses the SLO by a factor of {best.overshoot:.2f}, {beaten} by {other.overshoot:.2f}"
            elif other.score > 0:
                what = "TTFT" if best.aps else "JCT"
                saved = 1 - best.score / other.score
                how += f" by {saved:.0%} ({what} {_seconds(best.score)}, not {_seconds(other.score)})"
            lines.append(f"{how}; {beaten} is bound by {other.bottleneck}: {other.why}.")
            if over := self.overloaded(other.shape):
                said = ", ".join(f"{resource} {load:.2f}" for resource, load in over.items())
                lines[-1] += f" By the traffic alone it could not keep all storage NICs busy: {said}."
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "best": self.best.case.shape,
            "reasons": self.reasons(),
            "bottleneck_free": {"low": float(self.free.low), "high": float(self.free.high)},
            "splits": [
                {
                    "shape": split.case.shape,
                    "aps": split.aps,
                    "score_s": split.score,
                    "jct_s": split.result["jct_s"],
                    "ttft_s": split.result["ttft_s"]["mean"],
                    "tpot_s": split.result["tpot_s"]["mean"],
                    "bottleneck": split.bottleneck,
                    "why": split.why,
                    "missed": list(split.missed),
                    "overloaded_by_traffic": self.overloaded(split.shape),
                    "in_bottleneck_free_range": self.free.holds(split.shape.prefill_nodes, split.shape.decode_nodes),
                    **busy(split.result, split.shape),
                }
                for split in self.splits
            ],
            "sizes": [
                {
                    "name": size.name,
                    "given_tokens": size.given_tokens,
                    "peak_tokens": size.peak_tokens,
                    "enough_tokens": size.enough_tokens,
                    "scores_s": {str(tokens): size.scores[tokens] for tokens in sorted(size.scores)},
                }
                for size in self.sizes
            ],
        }


def shapes_of(nodes: int) -> list[str]:
    """Every split that has both roles; raises Rejected where there is none."""
    if nodes < 2:
        raise Rejected(f"nodes are {nodes}, wanted at least 2: one to prefill, one to decode", field="nodes")
    return [f"{prefill}P{nodes - prefill}D" for prefill in range(1, nodes)]


def busy(result: Result, shape: Shape) -> dict[str, float]:
    """Mean busy shares of what can bound a cluster."""
    nics = result["nic_busy"]
    prefill, decode = nics[: shape.prefill_nodes], nics[shape.prefill_nodes :]
    return {
        "prefill_busy": _mean(result["prefill_busy"]),
        "pe_nic_busy": _mean(prefill),
        "de_nic_busy": _mean(decode),
    }


def bottleneck(result: Result, shape: Shape, costs: Costs, slo: Slo | None = None) -> tuple[str, str]:
    """What bounds a run, and the shares that say so. Where TPOT comes nearest to an SLO, decode steps do."""
    shares = busy(result, shape)
    said = (
        f"PE groups are busy {shares['prefill_busy']:.0%}, storage NICs {shares['pe_nic_busy']:.0%} (prefill nodes)"
        f" and {shares['de_nic_busy']:.0%} (decode nodes)"
    )
    full = result["hbm_promised_mean_tokens"] / costs.hbm_tokens
    hbm_wait_s = result["hbm_wait_mean_s"]
    tpot_s = result["tpot_s"]["mean"]
    parts = {part: spread["mean"] for part, spread in result["parts_s"].items()}
    ttft_s = sum(parts.values())
    names = {
        "prefill_busy": "prefill compute",
        "pe_nic_busy": "the prefill nodes' storage NICs",
        "de_nic_busy": "the decode nodes' storage NICs",
    }
    if slo and slo.tpot_s and tpot_s >= AT_SLO * slo.tpot_s and slo.overshoot(result) == tpot_s / slo.tpot_s:
        return "decode steps", f"TPOT is {tpot_s * 1e3:.0f} ms, wanted at most {slo.tpot_s * 1e3:.0f} ms; {said}"
    busiest = max(shares, key=lambda name: shares[name])
    if hbm_wait_s > HBM_WAIT_ENOUGH * ttft_s:
        said = (
            f"turns wait {hbm_wait_s:.1f} s of a TTFT of {ttft_s:.1f} s for room in decode HBM,"
            f" {full:.0%} of it promised on average; {said}"
        )
        return (f"{names[busiest]} and decode HBM" if shares[busiest] >= BUSY_ALL else "decode HBM"), said
    if shares[busiest] >= BUSY_ENOUGH:
        return names[busiest], said
    if parts["buffer"] > BUFFER_WAIT_ENOUGH * ttft_s:
        return "the DE buffer", f"turns wait {parts['buffer']:.1f} s of a TTFT of {ttft_s:.1f} s for it; {said}"
    if tpot_s > SLOW_DECODE * costs.tpot_base_s:
        return "decode steps", f"TPOT is {tpot_s * 1e3:.0f} ms, {costs.tpot_base_s * 1e3:.0f} ms for one turn; {said}"
    return "the sessions' own pace", f"turns follow one another; {said}"


def make_plan(
    base: Case,
    nodes: int,
    slo: Slo,
    *,
    hardware: Hardware | None = None,
    jobs: int = 1,
    kept: Path | None = None,
    told: Told | None = None,
) -> Plan:
    """Run every split of `nodes` under the workload of `base` (its shape is replaced).

    Offline the score is JCT, with arrivals mean TTFT; with an SLO and no arrivals the most sessions per second that
    meet it are searched, in steps of APS_STEP (until_s and warm_up_s of the workload say how long each try is).

    hardware  for the bottleneck-free range; default: the paper's nodes with the profile's engines
    jobs, kept, told  as for `run_cases`

    raises  Rejected for fewer than two nodes, and where no split can hold the largest turn
    """

    def run(cases: Sequence[Case]) -> dict[Case, Result]:
        return run_cases(cases, jobs=jobs, kept=kept, told=told)

    cases = _feasible([replace(base, shape=shape) for shape in shapes_of(nodes)])
    if slo and not base.workload.aps:
        best_aps = _most_aps(cases, slo, run)
        cases = [_at(case, best_aps[case] or APS_STEP) for case in cases]
    splits = judged(cases, run(cases), slo)
    hardware = hardware or Hardware(engines_per_node=load_profile(base.profile).shape.engines_per_node)
    return Plan(splits, _sizes(splits[0], slo, run), hardware)


def judged(cases: Sequence[Case], results: Mapping[Case, Result], slo: Slo) -> list[Split]:
    """Each run with its score, its bottleneck and what it misses, the best first."""
    splits = []
    for case in cases:
        result = results[case]
        name, why = bottleneck(result, parse_shape(case.shape), case.scenario().costs, slo)
        splits.append(
            Split(
                case, result, objective_s(case, result), name, why,
                missed=slo.missed(result), overshoot=slo.overshoot(result), aps=case.workload.aps,
            )
        )  # fmt: skip
    return sorted(splits, key=_order)


def _order(split: Split) -> tuple[bool, float, float]:
    """Within the SLO: most arrivals, then the score. Else the nearest to it."""
    if split.missed:
        return (True, split.overshoot, split.score)
    return (False, -split.aps, split.score)


def _at(case: Case, aps: float) -> Case:
    return replace(case, workload=replace(case.workload, aps=aps, sessions=0))


def _most_aps(cases: Sequence[Case], slo: Slo, run: Run) -> dict[Case, float]:
    """The most sessions per second of each split, on a grid of APS_STEP: doubled until it misses, then bisected."""
    low = dict.fromkeys(cases, 0)  # in steps: meets
    high: dict[Case, int | None] = dict.fromkeys(cases)  # misses
    while True:
        probes: dict[Case, int] = {}
        for case in cases:
            top = high[case]
            if top is None:
                probes[case] = max(1, 2 * low[case])
            elif top - low[case] > 1:
                probes[case] = (low[case] + top) // 2
        probes = {case: steps for case, steps in probes.items() if steps * APS_STEP <= APS_MAX}
        if not probes:
            return {case: round(steps * APS_STEP, 10) for case, steps in low.items()}
        tried = {case: _at(case, round(steps * APS_STEP, 10)) for case, steps in probes.items()}
        results = run(list(tried.values()))
        for case, steps in probes.items():
            if slo.missed(results[tried[case]]):
                high[case] = steps
            else:
                low[case] = steps


def _sizes(best: Split, slo: Slo, run: Run) -> list[Size]:
    """The least buffer and the least HBM, each with the other as it is; both searches go on side by side."""
    costs = best.case.scenario().costs
    given = {"buffer_tokens": costs.buffer_tokens, "hbm_tokens": costs.hbm_tokens}
    searches = {name: _Least(tokens) for name, tokens in given.items()}
    scores: dict[str, dict[int, float | None]] = {name: {tokens: best.score} for name, tokens in given.items()}
    while tries := {name: tokens for name, search in searches.items() if (tokens := search.next_tokens) is not None}:
        cases = {name: replace(best.case, costs=(*best.case.costs, (name, tokens))) for name, tokens in tries.items()}
        results = run([case for case in cases.values() if _is_feasible(case)])
        for name, case in cases.items():
            score = None
            if case in results and (best.missed or not slo.missed(results[case])):
                score = objective_s(case, results[case])
            scores[name][tries[name]] = score
            searches[name].tried(tries[name], is_enough=score is not None and score <= (1 + SIZE_SLACK) * best.score)
    peaks = {name: best.result[name.replace("_tokens", "_peak_tokens")] for name in given}
    return [Size(name, given[name], peaks[name], searches[name].enough_tokens, scores[name]) for name in given]


class _Least:
    """The least capacity that is enough: halved until one is not, then bisected."""

    def __init__(self, given_tokens: int) -> None:
        self.enough_tokens = given_tokens
        self._short_tokens: int | None = None
        self._halvings, self._bisections = SIZE_HALVINGS, SIZE_BISECTIONS

    @property
    def next_tokens(self) -> int | None:
        """What to try; None when the search is over."""
        left = self._halvings if self._short_tokens is None else self._bisections
        tokens = (self.enough_tokens + (self._short_tokens or 0)) // 2
        return tokens if left and (self._short_tokens or 0) < tokens < self.enough_tokens else None

    def tried(self, tokens: int, *, is_enough: bool) -> None:
        if self._short_tokens is None:
            self._halvings -= 1
        else:
            self._bisections -= 1
        if is_enough:
            self.enough_tokens = tokens
        else:
            self._short_tokens = tokens


def _feasible(cases: Sequence[Case]) -> list[Case]:
    """Those that can hold the largest turn; raises the first one's Rejected where none can."""
    possible = [case for case in cases if _is_feasible(case)]
    if not possible:
        check_feasible(cases[0].scenario())
    return possible


def _is_feasible(case: Case) -> bool:
    try:
        check_feasible(_probe(case).scenario())
    except Rejected:
        return False
    return True


def _probe(case: Case) -> Case:
    """With arrivals to draw for: any rate will do to look at the sessions."""
    load = case.workload
    return case if load.sessions or load.trace or load.aps else _at(case, APS_STEP)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _seconds(span_s: float) -> str:
    return f"{span_s:,.0f} s" if span_s >= 100 else f"{span_s:.3g} s"
