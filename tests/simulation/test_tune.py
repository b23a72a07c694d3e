"""`sim tune`: the study goes on and is shared, draws are reproducible, and the report tells how flat the optimum is."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import typer
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from typer.testing import CliRunner

from dualpath.model.errors import Broken, Refused, Rejected
from dualpath.simulator.commands.options import changes_of
from dualpath.simulator.commands.tune import tune
from dualpath.simulator.runs.case import Case, Workload, run_case
from dualpath.simulator.runs.tune import (
    JCT,
    TTFT,
    Bench,
    Outcome,
    Problem,
    open_storage,
    open_study,
    outcome_of,
    problem_of,
    reachable,
    search,
)
from dualpath.simulator.runs.tune_report import PED_ANOVA_TRIALS, Sweep, importance_of, report_of, sweep_of

CASE = Case("ds-660b", "dualpath", "1P1D", Workload(8192, 12))
OPTIONS = ("-p", "ds-660b", "--shape", "1P1D", "--max-len", "8192", "--sessions", "12", "--points", "2")
COMMAND = "import typer; from dualpath.simulator.commands.tune import tune; typer.run(tune)"


def tuned(problem: Problem, trials: int, *, storage: str = "", seed: int = 3) -> optuna.Study:
    study = open_study(problem, storage=storage, seed=seed)
    with Bench() as bench:
        search(study, problem, bench, trials=trials)
    return study


def drawn(study: optuna.Study) -> list[tuple[dict[str, Any], float | None]]:
    return [(trial.params, trial.value) for trial in study.trials]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(CASE)


@pytest.fixture(scope="module")
def six(problem: Problem) -> optuna.Study:
    return tuned(problem, 6)


def test_first_trial_is_the_default_of_the_profile(problem: Problem, six: optuna.Study) -> None:
    assert six.trials[0].params == problem.default
    assert problem.default == {
        "alpha_s": 3.0,
        "beta_tokens": 700_000,
        "high_mark_factor": 1.05,
        "quota_s": 0.3,
        "decode_fetch_s": 0.04,
    }
    assert six.trials[0].value == run_case(CASE).jct_s


def test_same_seed_draws_the_same_trials_and_another_seed_others(problem: Problem, six: optuna.Study) -> None:
    assert drawn(tuned(problem, 6)) == drawn(six)
    assert drawn(tuned(problem, 3, seed=4))[1:] != drawn(six)[1:3]


def test_a_study_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, problem: Problem, six: optuna.Study) -> None:
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    assert len(tuned(problem, 4, storage=storage).trials) == 4
    assert drawn(tuned(problem, 6, storage=storage)) == drawn(six)
    assert len(tuned(problem, 6, storage=storage).trials) == 6  # all there: nothing is run


def test_report_of_a_study(problem: Problem, six: optuna.Study) -> None:
    with Bench() as bench:
        report = report_of(six, problem, bench, points=4)
    assert json.loads(json.dumps(report)) == json.loads(json.dumps(report))
    assert report["objective"] == JCT
    assert report["trials"] == {"complete": 6}
    assert report["default"]["trial"] == 0
    assert report["default"]["value_s"] == six.trials[0].value
    assert report["best"]["value_s"] == pytest.approx(six.best_value, rel=1e-3)
    assert report["gain_percent"] == pytest.approx(
        100 * (1 - report["best"]["value_s"] / report["default"]["value_s"]), abs=1e-9
    )
    assert len(report["check"]) == 2
    assert report["importance_from"] == "the sweeps' worst values"
    assert sum(knob["importance"] for knob in report["knobs"].values()) == pytest.approx(1)
    assert list(report["knobs"]) == list(problem.default)
    for knob in report["knobs"].values():
        values = [value for value, _ in knob["sweep"]]
        assert values == sorted(values)
        assert {*knob["range"], knob["default"], knob["best"]} <= set(values)
        narrow, wide = knob["within_1_percent"], knob["within_5_percent"]
        assert wide[0] <= narrow[0] <= knob["best"] <= narrow[1] <= wide[1]
        assert knob["what"]


def test_flags_of_the_report_give_the_best(problem: Problem, six: optuna.Study) -> None:
    with Bench() as bench:
        report = report_of(six, problem, bench, points=2)
    words = shlex.split(report["flags"])
    assert words[::2] == ["--set"] * 5
    changes = changes_of(words[1::2])
    case = Case(CASE.profile, CASE.system, CASE.shape, CASE.workload, **changes)
    assert run_case(case).jct_s == report["best"]["value_s"]


def test_sweep_ranges_end_where_the_objective_leaves_the_limit() -> None:
    sweep = sweep_of([1, 2, 3, 4, 5, 6], [104, 100.5, 100, 103, None, 100], 3, 100)
    assert sweep.within == {1.0: (2, 3), 5.0: (1, 4)}  # not past the value that could not be run
    assert sweep.worst_percent == pytest.approx(4)


def test_importance_is_ped_anova_once_there_are_enough_trials() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    ranges: dict[str, BaseDistribution] = {
        "alpha_s": FloatDistribution(1, 100, log=True),
        "quota_s": FloatDistribution(1, 100, log=True),
    }
    for number in range(PED_ANOVA_TRIALS):
        params = {"alpha_s": 1 + 37 * number % 99, "quota_s": 1 + number}
        study.add_trial(create_trial(params=params, distributions=ranges, value=10 + params["quota_s"]))
    sweeps = {name: Sweep((), (), {}, 0.0) for name in ranges}
    shares, source = importance_of(study, sweeps)
    assert source == "PED-ANOVA"
    assert shares["quota_s"] > shares["alpha_s"]


def test_objective_is_the_mean_ttft_where_sessions_arrive_over_time() -> None:
    case = Case("ds-660b", "dualpath", "1P1D", Workload(8192, 12, aps=0.2))
    problem = problem_of(case, names=["quota_s"])
    assert problem.objective == TTFT
    study = tuned(problem, 1)
    assert study.best_value == pytest.approx(run_case(case).ttft_s.mean)


def test_a_trial_that_cannot_be_run_is_pruned_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    heard: list[str] = []
    outcomes = iter([Outcome(20.0), Outcome(None, "hbm_tokens is too small"), Outcome(10.0)])
    monkeypatch.setattr("dualpath.simulator.runs.tune.outcome_of", lambda *_: next(outcomes))
    study = open_study(problem)
    with Bench() as bench:
        search(study, problem, bench, trials=3, said=heard.append)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
    assert heard == ["trial 1 pruned: hbm_tokens is too small"]


@pytest.mark.parametrize(
    ("error", "pruned"),
    [
        (Rejected("too large", field="hbm_tokens"), True),
        (Broken("deadlock at 3 s", reason="DEADLOCK"), True),
        (Broken("a law of ours does not hold"), False),
    ],
)
def test_only_what_the_knobs_can_cause_prunes(monkeypatch: pytest.MonkeyPatch, error: Exception, pruned: bool) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("dualpath.simulator.runs.tune.run_cases", fails)
    with Bench() as bench:
        future = bench.submit(CASE)
    if pruned:
        assert outcome_of(future, JCT) == Outcome(None, str(error))
    else:
        with pytest.raises(Broken):
            outcome_of(future, JCT)


def test_an_interrupt_leaves_the_ended_trials(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, six: optuna.Study
) -> None:
    study = open_study(problem, seed=3)
    submit, runs = Bench.submit, iter([False, False, True])

    def interrupted(bench: Bench, case: Case) -> Any:
        if next(runs):
            raise KeyboardInterrupt
        return submit(bench, case)

    monkeypatch.setattr(Bench, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt), Bench() as bench:
        search(study, problem, bench, trials=6)
    assert drawn(study)[:2] == drawn(six)[:2]
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]


def test_a_default_that_was_stopped_is_asked_again(tmp_path: Path, problem: Problem) -> None:
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    study = open_study(problem, storage=storage)
    study.tell(study.ask(), state=TrialState.FAIL)
    assert open_study(problem, storage=storage).ask().suggest_float("alpha_s", 1, 5) == problem.default["alpha_s"]
    assert len(open_study(problem, storage=storage).trials) == 2  # while it runs, nobody asks for it once more


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("tune.db", "is no URL, wanted an SQL URL such as sqlite:///tune.db"),
        ("nosuch://host/database", "cannot be used"),
        ("sqlite:////no/such/folder/tune.db", "unable to open database file"),
        ("postgresql://me:secret@127.0.0.1:1/database", "cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_used_is_rejected(url: str, said: str) -> None:
    with pytest.raises(Rejected, match=said) as caught:
        open_storage(url)
    assert caught.value.field == "storage"
    assert "secret" not in str(caught.value)


def test_a_storage_that_fails_under_way_says_to_come_again() -> None:
    with pytest.raises(Refused, match="the same command goes on"), reachable():
        raise optuna.exceptions.StorageInternalError("connection lost")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha_s", "range is 'alpha_s', wanted NAME=LOW:HIGH"),
        ("alpha_s=1:x", "range is 'alpha_s=1:x', wanted NAME=LOW:HIGH"),
        ("alpha_s=5:4", "range of alpha_s is 5:4, wanted LOW above 0 and below HIGH"),
        ("alpha_s=0:4", "range of alpha_s is 0:4, wanted LOW above 0"),
        ("alpha_s=1:inf", "range of alpha_s is 1:inf, wanted LOW above 0"),
        ("alpha_s=nan:4", "range of alpha_s is nan:4, wanted LOW above 0"),
        ("beta_tokens=1:inf", "range of beta_tokens is 1:inf, wanted LOW above 0"),
        ("beta_tokens=nan:2", "range of beta_tokens is nan:2, wanted LOW above 0"),
        ("alpha_s=4:9", "range of alpha_s is 4:9, wanted one with the default 3 in it"),
        ("high_mark_factor=0.5:2", "range of high_mark_factor is 0.5:2, and high_mark_factor is 0.5, wanted between"),
        ("gamma=1:2", "knob 'gamma' is unknown, wanted one of alpha_s, beta_tokens"),
    ],
)
def test_a_wrong_range_is_rejected(text: str, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        problem_of(CASE, ranges=[text])


def test_what_cannot_be_tuned_is_rejected_before_the_first_trial() -> None:
    with pytest.raises(Rejected, match="not searched"):
        problem_of(CASE, names=["quota_s"], ranges=["alpha_s=1:4"])
    with pytest.raises(Rejected, match="until_s is 60, wanted 0"):
        problem_of(Case("ds-660b", "dualpath", "1P1D", Workload(8192, 12, until_s=60)))
    with pytest.raises(Rejected, match="hbm_tokens"):
        problem_of(Case("ds-660b", "dualpath", "1P1D", Workload(8192, 12), costs=(("hbm_tokens", 100),)))


def test_a_study_about_something_else_is_rejected(tmp_path: Path, problem: Problem) -> None:
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    open_study(problem, storage=storage, name="mine")
    other = problem_of(CASE, ranges=["alpha_s=1:4"])
    with pytest.raises(Rejected, match=r"'mine' is about something else \(ranges: found") as caught:
        open_study(other, storage=storage, name="mine")
    assert caught.value.field == "study"


def test_two_processes_work_on_one_study(tmp_path: Path) -> None:
    problem = problem_of(CASE, names=["beta_tokens", "quota_s"])
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    command = [sys.executable, "-c", COMMAND, *OPTIONS, "--knobs", "beta_tokens,quota_s", "--trials", "8"]
    command += ["--storage", storage, "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    reports = [json.loads(out) for out, _ in told]
    assert reports[0]["study"] == reports[1]["study"] == problem.study_name
    study = open_study(problem, storage=storage)
    assert len(study.trials) in (8, 9)  # both may have seen seven
    assert study.trials[0].params == problem.default
    searched = [tuple(trial.params.values()) for trial in study.trials if trial.params != problem.default]
    assert len(set(searched)) == len(searched)  # one seed, and yet no point twice


def test_ctrl_c_keeps_what_has_ended_and_says_how_to_go_on(tmp_path: Path, problem: Problem) -> None:
    storage = f"sqlite:///{tmp_path / 'tune.db'}"
    command = [sys.executable, "-c", COMMAND, *OPTIONS, "--trials", "100000", "--storage", storage, "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    study = open_study(problem, storage=storage)
    deadline_s = time.monotonic() + 40
    while len(study.get_trials(states=(TrialState.COMPLETE,))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert f"in study {problem.study_name}: the same command goes on" in said
    assert len(study.get_trials(states=(TrialState.COMPLETE,))) >= 2
    assert not study.get_trials(states=(TrialState.RUNNING,))


def test_command_shows_the_report_and_writes_it(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(tune)
    out, plot = tmp_path / "report.json", tmp_path / "report.png"
    shown = CliRunner().invoke(app, [*OPTIONS, "--trials", "2", "--out", str(out), "--plot", str(plot)])
    assert shown.exit_code == 0, shown.output
    assert "--set alpha_s=" in shown.stdout
    assert "within 1 %" in shown.stdout
    assert json.loads(out.read_text())["trials"] == {"complete": 2}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_help_does_not_import_optuna() -> None:
    code = "import sys, dualpath.simulator.commands.tune; print('optuna' in sys.modules, 'matplotlib' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
