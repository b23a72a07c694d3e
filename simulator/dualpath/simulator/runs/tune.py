"""Search for the scheduler's best knobs with Optuna: many machines may work on one study in Optuna's SQL storage.

A trial is a case with its knobs changed; its value is the JCT, or the mean TTFT where sessions arrive over time. Each
trial is drawn with a seed of its own, made of the study's seed and the trial's number: the same history goes on the
same way after a stop, and two machines with one seed do not draw the same points.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dualpath.model.errors import Broken, Refused, Rejected
from dualpath.simulator.runs.case import Case
from dualpath.simulator.runs.interrupt import Interrupt, at_safe_points
from dualpath.simulator.runs.pool import POLL_S, Result, Told, objective_s, run_cases, workers
from dualpath.simulator.scenario import Scenario, check_feasible

JCT, TTFT = "jct_s", "ttft_mean_s"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
SPAN = 10.0  # a knob is searched from its default over this to its default times this
HEADROOM_SPAN = (1.0, 3.0)
DIGITS = 4  # of a knob's value, so that the flags of a report give its very case
SQLITE_WAIT_S = 60.0  # for another process that writes
STORAGE_RETRY_S = 10.0
CREATE_TRIES = 10  # two processes may create the tables of one database at the same time

Said = Callable[[str], None]
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class KnobKind:
    """A knob and what it does; `part` is the part of a Case that changes it."""

    name: str
    part: str
    unit: str
    what: str
    found: Callable[[Scenario], float]
    whole: bool = False


KINDS: Mapping[str, KnobKind] = {
    kind.name: kind
    for kind in (
        KnobKind(
            "alpha_s",
            "limits",
            "s",
            "alpha: a storage NIC with at most this much reading in its queue counts as short and is preferred",
            lambda scenario: scenario.limits.alpha_tokens / scenario.costs.snic_tokens_per_s,
        ),
        KnobKind(
            "beta_tokens",
            "limits",
            "tokens",
            "beta: a prefill engine with more open tokens than this gets nothing",
            lambda scenario: scenario.limits.beta_tokens,
            whole=True,
        ),
        KnobKind(
            "high_mark_factor",
            "limits",
            "x",
            "headroom: a decode engine above this multiple of the even share of tokens is avoided",
            lambda scenario: scenario.limits.high_mark_factor,
        ),
        KnobKind(
            "quota_s",
            "costs",
            "s",
            "compute quota: attention time that one prefill batch may take",
            lambda scenario: scenario.costs.quota_s,
        ),
        KnobKind(
            "decode_fetch_s",
            "modes",
            "s",
            "decode fetch cadence: how often a decode group asks for turns",
            lambda scenario: scenario.system.modes.decode_fetch_s,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Knob:
    """A knob with the range in which it is searched, both ends included."""

    kind: KnobKind
    default: float
    low: float
    high: float

    @property
    def name(self) -> str:
        return self.kind.name

    def suggest(self, trial: Trial) -> float:
        if self.kind.whole:
            return trial.suggest_int(self.name, round(self.low), round(self.high), log=True)
        return trial.suggest_float(self.name, self.low, self.high, log=True)

    def plain(self, value: float) -> float:
        """The value with few digits; the default and the ends of the range as they are."""
        if value == self.default:
            return self.default
        short = min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)
        return round(short) if self.kind.whole else short

    def grid(self, points: int, *others: float) -> tuple[float, ...]:
        """So many values over the range, evenly by their logarithm, and the given others; ascending."""
        ratio = self.high / self.low
        even = (self.low * ratio ** (at / (points - 1)) for at in range(points))
        return tuple(sorted({self.plain(value) for value in (*even, self.default, *others)}))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is tuned: a case, its knobs, and the objective in seconds."""

    case: Case
    knobs: tuple[Knob, ...]

    @property
    def objective(self) -> str:
        return TTFT if self.case.workload.is_online else JCT

    @property
    def default(self) -> Values:
        return {knob.name: knob.default for knob in self.knobs}

    def plain(self, values: Values) -> Values:
        return {knob.name: knob.plain(values[knob.name]) for knob in self.knobs}

    def with_values(self, values: Values) -> Case:
        """The case with its knobs set."""
        changes = {part: list(getattr(self.case, part)) for part in ("costs", "limits", "modes")}
        for knob in self.knobs:
            changes[knob.kind.part].append((knob.name, knob.plain(values[knob.name])))
        return replace(self.case, **{part: tuple(pairs) for part, pairs in changes.items()})  # type: ignore[arg-type]

    def identity(self) -> dict[str, Any]:
        """Trials of one study are alike in this."""
        return {
            "title": self.case.title,
            "objective": self.objective,
            "ranges": {knob.name: [knob.low, knob.high] for knob in self.knobs},
            "defaults": {knob.name: knob.default for knob in self.knobs},
            "case and code": self.case.key,
        }

    @property
    def study_name(self) -> str:
        """The same for the same problem."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.case.title).lower()}-{digest}"


def problem_of(case: Case, *, names: Sequence[str] = (), ranges: Sequence[str] = ()) -> Problem:
    """A case to tune.

    names   knobs to search, the others stay; none: all of `KINDS`
    ranges  NAME=LOW:HIGH, in place of the range around the default

    raises  Rejected naming the knob, the range, or what of the case cannot be run
    """
    scenario = case.scenario()
    check_feasible(scenario)
    if case.workload.until_s and not case.workload.aps and not case.workload.as_recorded:
        message = f"until_s is {case.workload.until_s:g}, wanted 0: the JCT of a run that is stopped says nothing"
        raise Rejected(message, field="until_s")
    given = dict(_range(text) for text in ranges)
    for name in (*names, *given):
        if name not in KINDS:
            raise Rejected(f"knob {name!r} is unknown, wanted one of {', '.join(KINDS)}", field="knobs")
    chosen = [name for name in KINDS if not names or name in names]
    for name in given:
        if name not in chosen:
            raise Rejected(f"range is of {name}, which is not searched: {', '.join(chosen)}", field="range")
    knobs = tuple(_knob(KINDS[name], scenario, given.get(name)) for name in chosen)
    problem = Problem(case, knobs)
    for knob in knobs:
        for end in (knob.low, knob.high):
            try:
                problem.with_values({**problem.default, knob.name: end}).scenario()
            except Rejected as error:
                message = f"range of {knob.name} is {knob.low:g}:{knob.high:g}, and {error}"
                raise Rejected(message, field="range") from error
    return problem


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError as error:
        raise Rejected(f"range is {text!r}, wanted NAME=LOW:HIGH such as alpha_s=0.5:20", field="range") from error


def _knob(kind: KnobKind, scenario: Scenario, ends: tuple[float, float] | None) -> Knob:
    default = float(f"{kind.found(scenario):.6g}")
    if kind.whole:
        default = round(kind.found(scenario))
    if ends is None:
        if not 0 < default < math.inf:
            message = f"{kind.name} is {default:g} by default: wanted --range {kind.name}=LOW:HIGH, and --set above 0"
            raise Rejected(message, field="range")
        ends = default / SPAN, default * SPAN
        if kind.name == "high_mark_factor":
            ends = HEADROOM_SPAN[0], max(HEADROOM_SPAN[1], default)
    low, high = (round(end) if kind.whole and abs(end) < math.inf else end for end in ends)
    if not 0 < low < high < math.inf:
        message = f"range of {kind.name} is {ends[0]:g}:{ends[1]:g}, wanted LOW above 0 and below HIGH"
        raise Rejected(message, field="range")
    if not low <= default <= high:
        message = f"range of {kind.name} is {low:g}:{high:g}, wanted one with the default {default:g} in it"
        raise Rejected(f"{message}; --set {kind.name}=… moves the default", field="range")
    return Knob(kind, default, low, high)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The objective of a run in seconds, or None and the reason why there is none."""

    value_s: float | None
    reason: str = ""
    turns: int = 0


def outcome_of(future: "Future[dict[Case, Result]]", objective: str) -> Outcome:
    """raises  what a run raises, besides a scenario that is rejected or comes to a deadlock"""
    try:
        ((case, result),) = future.result().items()
    except Rejected as error:
        return Outcome(None, str(error))
    except Broken as error:
        if error.reason != "DEADLOCK":
            raise
        return Outcome(None, str(error))
    except BrokenProcessPool as error:
        raise Broken("a simulating process was killed (memory?)", reason="CHILD") from error
    value = objective_s(case, result)
    if not 0 < value < math.inf:
        return Outcome(None, f"{objective} is {value:g}: no turn was counted", result["turns"])
    return Outcome(value, turns=result["turns"])


class Bench:
    """Runs cases: in this process with one job, else side by side.

    kept  folder of results: what is there is not run again
    told  hears of progress; `goal` runs in all
    """

    def __init__(self, *, jobs: int = 1, kept: Path | None = None, told: Told | None = None) -> None:
        self.jobs = max(jobs, 1)
        self.goal = self.done = self._turns = 0
        self._kept, self._told = kept, told
        self._pool: ProcessPoolExecutor | None = None
        self._closing = ExitStack()
        self.interrupt = Interrupt()

    def __enter__(self) -> Self:
        self.interrupt = self._closing.enter_context(at_safe_points())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def submit(self, case: Case) -> "Future[dict[Case, Result]]":
        """The one result of a case, now or later."""
        if self.jobs > 1:
            if self._pool is None:
                self._pool = self._closing.enter_context(workers(self.jobs))
            return self._pool.submit(run_cases, [case], kept=self._kept)
        future: Future[dict[Case, Result]] = Future()

        def during(_: int, __: int, turns: int, title: str) -> None:
            if self._told is not None:
                self._told(self.done, self.goal, self._turns + turns, title)
            self.interrupt.check()

        try:
            future.set_result(run_cases([case], kept=self._kept, told=during))
        except (Rejected, Broken) as error:
            future.set_exception(error)
        return future

    def ended(self, outcome: Outcome, title: str) -> None:
        """Tell of one more run."""
        self.done += 1
        self._turns += outcome.turns
        if self._told is not None:
            self._told(self.done, self.goal, self._turns, title)

    def run(self, cases: Sequence[Case], objective: str) -> dict[Case, Outcome]:
        """All of them, each once; raises as `outcome_of`."""
        wanted = list(dict.fromkeys(cases))
        self.done, self.goal = 0, len(wanted)
        outcomes: dict[Case, Outcome] = {}
        running: dict[Future[dict[Case, Result]], Case] = {}
        for case in wanted:
            running[self.submit(case)] = case
            if self.jobs > 1 and case is not wanted[-1]:
                continue
            while running:
                self.interrupt.check()
                ended, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in ended:
                    title = running[future].title
                    outcome = outcomes[running.pop(future)] = outcome_of(future, objective)
                    self.ended(outcome, title)
        return outcomes


class ByNumber(BaseSampler):
    """Optuna's TPE, drawn for each trial with the study's seed and the trial's number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tpe = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        digest = hashlib.sha256(f"{self._seed} {trial.number}".encode()).digest()
        self._tpe = TPESampler(seed=int.from_bytes(digest[:4], "little"))
        self._tpe.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


def open_study(problem: Problem, *, storage: str = "", name: str = "", seed: int = 0) -> Study:
    """Create a study or join it; its first trial is the default.

    storage  an SQLAlchemy URL; "": in memory

    raises  Rejected for a storage that cannot be used, or a study of this name about something else
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    name = name or problem.study_name
    study = optuna.create_study(
        storage=open_storage(storage), study_name=name, sampler=ByNumber(seed), load_if_exists=True
    )
    wanted = problem.identity()
    begun = bool(study.get_trials(deepcopy=False))  # asked first: another machine writes the identity before a trial
    found = study.user_attrs.get("identity")
    if found is None and not begun:
        study.set_user_attr("identity", wanted)
    elif found != wanted:
        differing = [key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]]
        told = "; ".join(f"{key}: found {(found or {}).get(key)}, wanted {wanted[key]}" for key in differing[:2])
        raise Rejected(f"study {name!r} is about something else ({told}); choose another --study", field="study")
    if not any(is_default(trial, problem) for trial in study.get_trials(deepcopy=False)):
        study.enqueue_trial(dict(problem.default))
    return study


def is_default(trial: FrozenTrial, problem: Problem) -> bool:
    values = trial.system_attrs.get("fixed_params") or trial.params
    return trial.state != TrialState.FAIL and values == problem.default


@contextmanager
def reachable() -> Iterator[None]:
    """raises Refused for a storage that fails under way: what has ended is in it"""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        message = f"the study's storage failed ({cause}); when it is back, the same command goes on"
        raise Refused(message, retry_after_s=STORAGE_RETRY_S, reason="STORE_UNAVAILABLE") from error


def open_storage(url: str) -> BaseStorage:
    """Optuna's own storage at an SQLAlchemy URL; "": in memory. raises Rejected for one that cannot be used"""
    if not url:
        return InMemoryStorage()
    wanted = "wanted an SQL URL such as sqlite:///tune.db or postgresql://user@host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise Rejected(f"storage {url.partition('://')[0]!r} is no URL, {wanted}", field="storage") from error
    shown = parsed.render_as_string(hide_password=True)
    options = {"connect_args": {"timeout": SQLITE_WAIT_S}} if parsed.get_backend_name() == "sqlite" else {}
    for attempt in range(CREATE_TRIES):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, RuntimeError) as error:
            raced = isinstance(error, SQLAlchemyError) and "already exists" in str(error)
            if (raced or "UNIQUE" in str(error)) and attempt + 1 < CREATE_TRIES:
                time.sleep(0.1 * (attempt + 1))
                continue
            cause = getattr(error, "orig", None) or error.__cause__ or error
            message = f"storage {shown} cannot be used ({cause}), {wanted}"
            raise Rejected(message, field="storage") from error
    raise AssertionError("the last try returns or raises")


def search(study: Study, problem: Problem, bench: Bench, *, trials: int, said: Said = lambda text: None) -> None:
    """Go on until so many trials of the study have ended, those of other machines included.

    said  hears why a trial was pruned

    An interrupt or an error leaves the trials that have ended; those that were running count as failed.
    """
    asked: list[Trial] = []
    running: dict[Future[dict[Case, Result]], Trial] = {}
    try:
        while True:
            bench.interrupt.check()
            ended = study.get_trials(deepcopy=False, states=ENDED)
            bench.done, bench.goal = len(ended), trials
            while len(running) < bench.jobs and len(ended) + len(running) < trials:
                trial = study.ask()
                asked.append(trial)
                values = {knob.name: knob.suggest(trial) for knob in problem.knobs}
                running[bench.submit(problem.with_values(values))] = trial
            if not running:
                return
            for future in wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED).done:
                outcome, trial = outcome_of(future, problem.objective), running.pop(future)
                _tell(study, trial, outcome, said)
                asked.remove(trial)
                bench.ended(outcome, _standing(study))
    except BaseException:
        for trial in asked:
            with suppress(Exception):  # told already, or a storage that is gone: the cause is what counts
                study.tell(trial, state=TrialState.FAIL)
        raise


def _tell(study: Study, trial: Trial, outcome: Outcome, said: Said) -> None:
    if outcome.value_s is not None:
        study.tell(trial, outcome.value_s)
        return
    trial.set_user_attr("reason", outcome.reason)
    study.tell(trial, state=TrialState.PRUNED)
    said(f"trial {trial.number} pruned: {outcome.reason}")


def _standing(study: Study) -> str:
    best = best_trial(study)
    return f"best {best.value:.5g} s" if best is not None else ""


def best_trial(study: Study) -> FrozenTrial | None:
    """The first of the best trials."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return min(complete, key=lambda trial: (trial.value, trial.number), default=None)
