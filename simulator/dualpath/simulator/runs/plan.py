"""The capacity plan: which split of nodes into prefill and decode serves a workload best, what bounds each, and how
much DE buffer and decode HBM the best one needs (paper §4.2 beside what the simulator says)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualpath.model.errors import Rejected
from dualpath.simulator.machine.shape import Costs, Shape
from dualpath.simulator.profiles.bottleneck import FreeRange, Hardware, free_range
from dualpath.simulator.profiles.profile import parse_shape
from dualpath.simulator.runs.case import Case
from dualpath.simulator.runs.pool import Result, Told, run_cases
from dualpath.simulator.scenario import check_feasible

APS_STEP = 0.05
APS_MAX = 12.8
SIZES = (1.0, 0.5, 0.25, 0.125)
SIZE_SLACK = 0.02  # a smaller buffer or HBM will do while the result stays within this
BUSY_ENOUGH = 0.6  # what is busy less than this bounds nothing
FULL_ENOUGH = 0.9
WAIT_ENOUGH = 0.5  # share of TTFT
SLOW_DECODE = 1.3  # TPOT over that of a turn alone


@dataclass(frozen=True, slots=True)
class Slo:
    """Means in seconds; 0: not asked for."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0

    def missed(self, result: Result) -> list[str]:
        """What is missed, with the value found and the value wanted."""
        return [
            f"mean {label} is {result[name]['mean']:.3f} s, wanted at most {wanted:g} s"
            for label, name, wanted in (("TTFT", "ttft_s", self.ttft_s), ("TPOT", "tpot_s", self.tpot_s))
            if wanted and result[name]["mean"] > wanted
        ]

    def __bool__(self) -> bool:
        return bool(self.ttft_s or self.tpot_s)


@dataclass(frozen=True, slots=True)
class Split:
    """A split and its run. score: smaller is better. aps: sessions per second that it was given; 0: all at once."""

    case: Case
    result: Result
    score: float
    bottleneck: str
    why: str
    missed: Sequence[str] = ()
    aps: float = 0.0

    @property
    def shape(self) -> Shape:
        return parse_shape(self.case.shape)


@dataclass(frozen=True, slots=True)
class Size:
    """A capacity of the best split: what the profile has, the peak in use, and the least that will do."""

    name: str
    given_tokens: int
    peak_tokens: int
    enough_tokens: int
    scores: Mapping[int, float | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Splits in order of their score, those within the SLO first."""

    splits: Sequence[Split]
    sizes: Sequence[Size]
    free: FreeRange

    @property
    def best(self) -> Split:
        return self.splits[0]

    def reasons(self) -> list[str]:
        """Why the best is the best, one sentence per other split."""
        best = self.best
        lines = [f"{best.case.shape} is bound by {best.bottleneck}: {best.why}."]
        for other in self.splits[1:]:
            if best.aps or other.aps:
                how = f"serves {best.aps:g} sessions per second, {other.case.shape} {other.aps:g}"
            else:
                how = f"beats {other.case.shape} by {other.score / best.score - 1:.0%}"
            lines.append(f"{best.case.shape} {how}, which is bound by {other.bottleneck}: {other.why}.")
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
                }
                for size in self.sizes
            ],
        }


def shapes_of(nodes: int, nodes_per_group: int = 1) -> list[str]:
    """Every split that has both roles; raises Rejected where there is none."""
    if nodes < 2 * nodes_per_group:
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


def bottleneck(result: Result, shape: Shape, costs: Costs) -> tuple[str, str]:
    """What bounds a run, and the shares that say so."""
    shares = busy(result, shape)
    said = (
        f"PE groups are busy {shares['prefill_busy']:.0%}, storage NICs {shares['pe_nic_busy']:.0%} (prefill nodes)"
        f" and {shares['de_nic_busy']:.0%} (decode nodes)"
    )
    full = result["hbm_peak_tokens"] / costs.hbm_tokens
    tpot_s = result["tpot_s"]["mean"]
    waits = result["parts_s"]
    ttft_s = sum(part["mean"] for part in waits.values()) or 1.0
    names = {
        "prefill_busy": "prefill compute",
        "pe_nic_busy": "the prefill nodes' storage NICs",
        "de_nic_busy": "the decode nodes' storage NICs",
    }
    busiest = max(shares, key=lambda name: shares[name])
    if full >= FULL_ENOUGH and waits["scheduling"]["mean"] > WAIT_ENOUGH * ttft_s:
        said = f"{full:.0%} of the HBM is in use at the peak, and turns wait to be placed; {said}"
        return (f"{names[busiest]} and decode HBM" if shares[busiest] >= FULL_ENOUGH else "decode HBM"), said
    if shares[busiest] >= BUSY_ENOUGH:
        return names[busiest], said
    if waits["buffer"]["mean"] > WAIT_ENOUGH * ttft_s:
        return "the DE buffer", f"{waits['buffer']['mean']:.1f} s of TTFT are waits for it; {said}"
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

    raises  Rejected where no split can hold the largest turn
    """

    def run(cases: Sequence[Case]) -> dict[Case, Result]:
        return run_cases(cases, jobs=jobs, kept=kept, told=told)

    cases = _feasible([replace(base, shape=shape) for shape in shapes_of(nodes)])
    if slo and not base.workload.aps:
        best_aps = _most_aps(cases, slo, run)
        cases = [_at(case, best_aps[case] or APS_STEP) for case in cases]
    results = run(cases)
    splits = sorted((_judged(case, results[case], slo) for case in cases), key=_order)
    sizes = _sizes(splits[0], run)
    return Plan(splits, sizes, free_range(hardware or Hardware()))


def _judged(case: Case, result: Result, slo: Slo) -> Split:
    name, why = bottleneck(result, parse_shape(case.shape), case.scenario().costs)
    missed = slo.missed(result)
    score = _score(case, result)
    return Split(case, result, score, name, why, missed, case.workload.aps)


def _order(split: Split) -> tuple[bool, float, float]:
    return (bool(split.missed), -split.aps, split.score)


def _score(case: Case, result: Result) -> float:
    score: float = result["ttft_s"]["mean"] if case.workload.aps else result["jct_s"]
    return score


def _at(case: Case, aps: float) -> Case:
    return replace(case, workload=replace(case.workload, aps=aps, sessions=0))


def _most_aps(
    cases: Sequence[Case], slo: Slo, run: Callable[[Sequence[Case]], Mapping[Case, Result]]
) -> dict[Case, float]:
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


def _sizes(best: Split, run: Callable[[Sequence[Case]], Mapping[Case, Result]]) -> list[Size]:
    """Smaller and smaller buffers and HBM, each alone, until the result suffers."""
    costs = best.case.scenario().costs
    sizes = []
    for name, given, peak in (
        ("buffer_tokens", costs.buffer_tokens, best.result["buffer_peak_tokens"]),
        ("hbm_tokens", costs.hbm_tokens, best.result["hbm_peak_tokens"]),
    ):
        tries = {}
        for size in SIZES[1:]:
            smaller = round(given * size)
            tries[smaller] = replace(best.case, costs=(*best.case.costs, (name, smaller)))
        possible = {tokens: case for tokens, case in tries.items() if _is_feasible(case)}
        results = run(list(possible.values()))
        scores: dict[int, float | None] = {given: best.score}
        enough = given
        for tokens in tries:
            case = possible.get(tokens)
            scores[tokens] = None if case is None else _score(case, results[case])
        for tokens in sorted(scores, reverse=True):
            score = scores[tokens]
            if score is None or score > (1 + SIZE_SLACK) * best.score:
                break
            enough = tokens
        sizes.append(Size(name, given, peak, enough, scores))
    return sizes


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
