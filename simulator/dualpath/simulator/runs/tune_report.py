"""What a study found: the best trial against the default, and how flat the optimum is in each knob."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import Study
from optuna.trial import TrialState

from dualpath.model.errors import Rejected
from dualpath.simulator.runs.case import Case, Workload
from dualpath.simulator.runs.tune import Bench, Problem, best_trial, is_default

CHECK_SEEDS = 2  # other workloads on which the best is compared with the default
FLAT_PERCENT = (1.0, 5.0)
PED_ANOVA_TRIALS = 50  # it looks at the best tenth, and wants five trials there


@dataclass(frozen=True, slots=True)
class Sweep:
    """One knob over its range, the others as in the best trial; a value without an objective could not be run.

    within       ends of the values next to the best that stay within so many percent of it
    worst_percent  how much the worst value of the sweep is above the best
    """

    values: tuple[float, ...]
    objective_s: tuple[float | None, ...]
    within: Mapping[float, tuple[float, float]]
    worst_percent: float


def sweep_of(values: Sequence[float], objective_s: Sequence[float | None], best: float, best_s: float) -> Sweep:
    """`best` is one of the ascending values, `best_s` its objective."""
    at = list(values).index(best)
    within = {}
    for percent in FLAT_PERCENT:
        limit = best_s * (1 + percent / 100)
        low = high = at
        while low > 0 and _fits(objective_s[low - 1], limit):
            low -= 1
        while high + 1 < len(values) and _fits(objective_s[high + 1], limit):
            high += 1
        within[percent] = values[low], values[high]
    worst = max(value for value in objective_s if value is not None)
    return Sweep(tuple(values), tuple(objective_s), within, 100 * (worst / best_s - 1))


def _fits(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def report_of(study: Study, problem: Problem, bench: Bench, *, points: int = 9) -> dict[str, Any]:
    """The study's best trial against the default, and how flat the optimum is: runs a sweep of each knob around it.

    points  values of a sweep, besides the default and the best

    raises  Rejected where no trial could be run
    """
    best_found = best_trial(study)
    ended = study.get_trials(deepcopy=False)
    if best_found is None:
        reasons = [trial.user_attrs["reason"] for trial in ended if "reason" in trial.user_attrs]
        raise Rejected(f"no trial of {len(ended)} could be run: {(reasons or ['all were stopped'])[0]}", field="trials")
    objective = problem.objective
    best, default = problem.plain(best_found.params), problem.default
    grids = {knob.name: knob.grid(points, best[knob.name]) for knob in problem.knobs}
    lines = {name: [problem.with_values({**best, name: value}) for value in values] for name, values in grids.items()}
    pairs = [(problem.with_values(default), problem.with_values(best))]
    seeds, others = check_workloads(problem.case)
    pairs += [(replace(one, workload=load), replace(two, workload=load)) for one, two in pairs for load in others]
    outcomes = bench.run(
        [*(case for pair in pairs for case in pair), *(case for line in lines.values() for case in line)], objective
    )
    seen = {case: outcome.value_s for case, outcome in outcomes.items()}
    best_s, default_s = seen[pairs[0][1]], seen[pairs[0][0]]
    assert best_s is not None, "the best trial was run before"
    sweeps = {
        name: sweep_of(grids[name], [seen[case] for case in line], best[name], best_s) for name, line in lines.items()
    }
    importance, source = importance_of(study, sweeps)
    states = [trial.state for trial in ended]
    default_trial = next((trial.number for trial in ended if is_default(trial, problem)), None)
    return {
        "case": problem.case.title,
        "study": study.study_name,
        "objective": objective,
        "trials": {state.name.lower(): states.count(state) for state in TrialState if states.count(state)},
        "history": [[trial.number, trial.value] for trial in ended if trial.state == TrialState.COMPLETE],
        "pruned": [[trial.number, trial.user_attrs["reason"]] for trial in ended if "reason" in trial.user_attrs],
        "default": {"trial": default_trial, "value_s": default_s, "values": dict(default)},
        "best": {"trial": best_found.number, "value_s": best_s, "values": dict(best)},
        "gain_percent": gain_percent(default_s, best_s),
        "flags": " ".join(f"--set {name}={value:.10g}" for name, value in best.items()),
        "check": [
            {
                "seed": seed,
                "default_s": seen[one],
                "best_s": seen[two],
                "gain_percent": gain_percent(seen[one], seen[two]),
            }
            for seed, (one, two) in zip(seeds, pairs[1:], strict=True)
        ],
        "better_in_sweep": _better_in_sweep(sweeps, best_s),
        "importance_from": source,
        "knobs": {
            knob.name: {
                "what": knob.kind.what,
                "unit": knob.kind.unit,
                "range": [knob.low, knob.high],
                "default": knob.default,
                "best": best[knob.name],
                **{f"within_{percent:g}_percent": list(ends) for percent, ends in sweeps[knob.name].within.items()},
                "worst_percent": sweeps[knob.name].worst_percent,
                "importance": importance[knob.name],
                "sweep": list(zip(sweeps[knob.name].values, sweeps[knob.name].objective_s, strict=True)),
            }
            for knob in problem.knobs
        },
    }


def gain_percent(default_s: float | None, best_s: float | None) -> float | None:
    """How much less time the best takes; None where one of both could not be run."""
    return 100 * (1 - best_s / default_s) if default_s and best_s is not None else None


def check_workloads(case: Case) -> tuple[list[int], list[Workload]]:
    """Seeds and workloads of the same kind that the study has not seen; none for a trace without drawn arrivals."""
    load = case.workload
    if load.trace and not load.aps:
        return [], []
    steps = range(1, CHECK_SEEDS + 1)
    if load.trace:
        seeds = [load.arrival_seed + step for step in steps]
        return seeds, [replace(load, arrival_seed=seed) for seed in seeds]
    return [load.seed + step for step in steps], [
        replace(load, seed=load.seed + step, arrival_seed=load.arrival_seed + step) for step in steps
    ]


def importance_of(study: Study, sweeps: Mapping[str, Sweep]) -> tuple[dict[str, float], str]:
    """Share of each knob, 1 in sum: by PED-ANOVA, or by the sweeps where trials are too few or all alike."""
    names = list(sweeps)
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) >= PED_ANOVA_TRIALS and len({trial.value for trial in complete}) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=names)
        if sum(found.values()) > 0:
            return {name: float(found[name]) for name in names}, "PED-ANOVA"
    spans = {name: sweep.worst_percent for name, sweep in sweeps.items()}
    total = sum(spans.values())
    return {name: span / total if total else 0.0 for name, span in spans.items()}, "the sweeps' worst values"


def _better_in_sweep(sweeps: Mapping[str, Sweep], best_s: float) -> dict[str, Any] | None:
    """A value that the search has not met and that is better still."""
    met = [
        (objective_s, name, value)
        for name, sweep in sweeps.items()
        for value, objective_s in zip(sweep.values, sweep.objective_s, strict=True)
        if objective_s is not None and objective_s < best_s
    ]
    if not met:
        return None
    value_s, name, value = min(met)
    return {"knob": name, "value": value, "value_s": value_s, "gain_percent": gain_percent(best_s, value_s)}
