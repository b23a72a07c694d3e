"""The reproduction: what is compared with what, and that a run of it is the same every time."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dualpath.model.errors import Broken, Rejected
from dualpath.scheduler.policy.decisions import PrefillDecision, StopReason
from dualpath.scheduler.policy.snapshot import PolicyLimits, PrefillSnapshot
from dualpath.simulator.command import register
from dualpath.simulator.reproduce.figures import knee_aps
from dualpath.simulator.reproduce.grid import (
    BEYOND,
    FIGURES,
    MODELS,
    ablation_case,
    fig7_cells,
    figure_cases,
    held_out_jct_s,
    paper,
)
from dualpath.simulator.reproduce.report import draw, headline, numbers_of, page
from dualpath.simulator.runs.case import Case, Workload, run_case
from dualpath.simulator.runs.pool import run_cases
from dualpath.simulator.scenario import simulate

SMALL = Case("ds-660b", "dualpath", "1P1D", Workload(8192, 12))


def _exact() -> dict[Case, dict[str, object]]:
    """Results as if every run had come out as the paper shows it."""
    ablation = paper()["fig12"]
    shown = {
        ablation_case(system, count): ablation[system][at]
        for system in ("layerwise", "alternating")
        for at, count in enumerate(ablation["sessions"])
    }
    shown |= dict(held_out_jct_s()) | {cell.case: cell.jct_s for model in MODELS for cell in fig7_cells(model)}
    spread = {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}
    parts = dict.fromkeys(("scheduling", "buffer", "read", "prefill"), spread)
    return {
        case: {
            "jct_s": shown.get(case, 1.0),
            "turns": 10,
            "ttft_s": spread,
            "ttst_s": spread,
            "tpot_s": {**spread, "mean": 0.03},
            "parts_s": parts,
            "nic_max_over_avg": 1.2,
            "attention_max_over_avg": 1.1,
        }
        for figure in FIGURES
        for case in figure_cases(figure)
    }


def test_results_equal_to_the_paper_have_no_error() -> None:
    results = _exact()
    numbers = numbers_of(draw(results), results)

    assert [numbers["fig7"][model]["mean_abs_error"] for model in MODELS] == [0.0, 0.0, 0.0]
    assert numbers["fig7"]["speedup_error"] == 0.0
    assert numbers["held_out"]["mean_abs_error"] < 0.01  # Table 3 shows a run of Fig. 7 a little differently
    assert numbers["ablation"]["cuts"] == pytest.approx(list(paper()["fig12"]["cuts_percent"].values()), abs=0.6)
    assert list(numbers["table3"]["offline_jct_s"]) == ["2P4D", "48P96D"]
    assert numbers["table3"]["offline_jct_s"]["48P96D"] == 3201.0


def test_the_headline_and_the_page_name_every_figure() -> None:
    results = _exact()
    figures = draw(results)
    text = page(figures, numbers_of(figures, results), [("fig7", "images/fig7.png")])

    assert all(figure.title in text for figure in figures.values())
    assert "![Fig. 7: offline JCT](images/fig7.png)" in text
    assert len(headline(numbers_of(figures, results)).rows) == 10


def test_a_fitted_row_is_not_held_out() -> None:
    held_out = held_out_jct_s()

    assert all((cell.case in held_out) != cell.is_fitted for model in MODELS for cell in fig7_cells(model))


def test_the_knee_is_the_last_rate_before_the_first_that_misses() -> None:
    def result(ttft_s: float, tpot_s: float = 0.03) -> dict[str, object]:
        return {"ttft_s": {"mean": ttft_s}, "tpot_s": {"mean": tpot_s}}

    rates = (0.1, 0.2, 0.3, 0.4)
    slo = {"slo_ttft_s": 4.0, "slo_tpot_s": 0.05}

    assert knee_aps(rates, [result(t) for t in (1, 2, 5, 3)], **slo) == 0.2
    assert knee_aps(rates, [result(1, t) for t in (0.03, 0.04, 0.05, 0.06)], **slo) == 0.3
    assert knee_aps(rates, [result(9)] * 4, **slo) == 0.0


def test_one_seed_gives_the_same_figures_in_any_process(tmp_path: Path) -> None:
    code = (
        "import json; from dualpath.simulator.runs.case import *;"
        "c = Case('ds-660b', 'dualpath', '1P2D', Workload(16384, 40));"
        "print(json.dumps(run_case(c).as_dict(), sort_keys=True), c.key)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }

    assert len(printed) == 1


def test_kept_results_are_those_of_a_run(tmp_path: Path) -> None:
    told: list[int] = []
    first = run_cases([SMALL], kept=tmp_path)
    second = run_cases([SMALL], kept=tmp_path, told=lambda ended, total, turns, title: told.append(turns))

    assert first == second
    assert told == []  # nothing was run
    assert first[SMALL]["jct_s"] == run_case(SMALL).jct_s


def test_a_result_cut_off_by_a_full_disk_is_run_again(tmp_path: Path) -> None:
    (tmp_path / f"{SMALL.key}.json").write_text('{"case": ')

    assert run_cases([SMALL], kept=tmp_path)[SMALL]["turns"] == run_case(SMALL).turns


def test_several_processes_give_what_one_gives() -> None:
    cases = [
        SMALL,
        Case("ds-660b", "basic", "1P1D", SMALL.workload),
        Case("qwen-32b", "dualpath", "1P1D", SMALL.workload),
    ]

    assert run_cases(cases, jobs=2) == run_cases(cases, jobs=1)


def test_what_ended_before_an_error_is_kept(tmp_path: Path) -> None:
    impossible = Case("ds-660b", "dualpath", "1P1D", SMALL.workload, costs=(("buffer_tokens", 64),))

    with pytest.raises(Rejected, match="buffer_tokens"):
        run_cases([SMALL, impossible], kept=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("ds-660b", "dualpath", "2P0D"), "shape is '2P0D', wanted prefill and decode nodes such as 2P4D"),
        (Case("ds-660b", "best", "1P1D"), "system 'best' is unknown, wanted one of dualpath, basic"),
        (Case("ds-660b", "dualpath", "1P1D", limits=(("gamma", 1),)), "limits 'gamma' is unknown"),
        (Case("ds-660b", "dualpath", "1P1D", limits=(("beta_tokens", "many"),)), "beta_tokens is 'many'"),
        (Case("ds-660b", "dualpath", "1P1D", slow_nics=((9, 2.0),)), "slow_nics names node 9, wanted 0 to 1"),
        (Case("ds-660b", "dualpath", "1P1D", Workload(sessions=0)), "sessions are 0, wanted at least 1"),
        (Case("ds-660b", "dualpath", "1P1D", Workload(aps=1.0, sessions=0)), "an endless workload"),
    ],
)
def test_a_case_that_cannot_be_run_says_which_field(case: Case, message: str) -> None:
    with pytest.raises(Rejected, match=message):
        run_case(case)


def test_stragglers_slow_the_run_down() -> None:
    slow = Case("ds-27b", "dualpath", "1P1D", Workload(16_384, 64), slow_nics=((0, 8.0),), slow_gpus=((1, 2.0),))
    even = Case("ds-27b", "dualpath", "1P1D", Workload(16_384, 64))

    assert run_case(slow).jct_s > 1.05 * run_case(even).jct_s


def test_a_deadlock_is_an_error_with_a_report() -> None:
    def never(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
        return PrefillDecision((), StopReason.ALL_OVERLOADED, len(snapshot.waiting))

    scenario = SMALL.scenario()
    system = replace(scenario.system, policy=replace(scenario.system.policy, assign_prefill=never))

    with pytest.raises(Broken, match="nothing is left to happen; 12 of 12 sessions are open"):
        simulate(replace(scenario, system=system))


@pytest.mark.parametrize("system", ["dualpath", "basic", "oracle", *BEYOND])
def test_nothing_is_lost_and_the_nics_read_what_was_hit(system: str) -> None:
    case = Case("ds-660b", system, "2P2D", Workload(16_384, 48))
    sessions, _ = case.workload.build()
    summary = run_case(case)

    assert summary.sessions == 48
    assert summary.turns == sum(session.turns for session in sessions)
    assert summary.gen_tokens == sum(sum(session.gens) for session in sessions)
    assert sum(summary.nic_read_tokens) == (0 if system == "oracle" else summary.hit_tokens)


def test_the_commands_speak_json_and_write_files(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    out = tmp_path / "run.json"
    small = ["--shape", "1P1D", "--sessions", "6", "--max-len", "8192"]
    run = CliRunner().invoke(app, ["sim", "run", *small, "--json", "--out", str(out)], catch_exceptions=False)
    compared = CliRunner().invoke(
        app, ["sim", "compare", *small, "--jobs", "1", "--json", "--policy", "roundrobin"], catch_exceptions=False
    )

    assert json.loads(run.output) == json.loads(out.read_text())
    assert json.loads(run.output)["summary"]["sessions"] == 6
    assert list(json.loads(compared.output)["summaries"]) == ["basic", "dualpath", "roundrobin"]


def test_an_unknown_figure_is_named() -> None:
    app = typer.Typer()
    register(app)
    ended = CliRunner().invoke(app, ["sim", "reproduce", "--only", "fig6"])

    assert isinstance(ended.exception, Rejected)
    assert "figure 'fig6' is unknown, wanted one of fig7" in str(ended.exception)
