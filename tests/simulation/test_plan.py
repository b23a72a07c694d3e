"""The capacity plan on small workloads, and what it calls a bottleneck."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dualpath.model.errors import Rejected
from dualpath.simulator.command import register
from dualpath.simulator.machine.shape import Shape
from dualpath.simulator.profiles.profile import load_profile
from dualpath.simulator.runs.case import Case, Workload
from dualpath.simulator.runs.plan import APS_STEP, Plan, Slo, _Least, bottleneck, judged, make_plan, shapes_of
from dualpath.simulator.runs.pool import run_cases

COSTS = load_profile("ds-660b").costs
SMALL = Workload(16_384, 24)
QUEUED = {"scheduling": {"mean": 9.5}, "buffer": {"mean": 0.1}, "read": {"mean": 0.1}, "prefill": {"mean": 0.1}}


def _result(**changes: object) -> dict[str, object]:
    idle = {part: {"mean": 0.1} for part in ("scheduling", "buffer", "read", "prefill")}
    return {
        "nic_busy": [0.1, 0.1],
        "prefill_busy": [0.1],
        "hbm_promised_mean_tokens": 1000,
        "hbm_wait_mean_s": 0.0,
        "counted_turns": 1,
        "jct_s": 10.0,
        "ttft_s": {"mean": 0.4},
        "tpot_s": {"mean": COSTS.tpot_base_s},
        "parts_s": idle,
        **changes,
    }


def test_every_split_has_both_roles() -> None:
    assert shapes_of(4) == ["1P3D", "2P2D", "3P1D"]
    with pytest.raises(Rejected, match="nodes are 1, wanted at least 2"):
        shapes_of(1)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"prefill_busy": [0.95]}, "prefill compute"),
        ({"nic_busy": [0.97, 0.2]}, "the prefill nodes' storage NICs"),
        ({"nic_busy": [0.2, 0.97]}, "the decode nodes' storage NICs"),
        ({"hbm_wait_mean_s": 9.0, "parts_s": QUEUED}, "decode HBM"),
        ({"hbm_wait_mean_s": 9.0, "parts_s": QUEUED, "prefill_busy": [0.95]}, "prefill compute and decode HBM"),
        ({"hbm_wait_mean_s": 0.01, "parts_s": QUEUED, "prefill_busy": [0.98]}, "prefill compute"),
        (
            {"parts_s": {**{p: {"mean": 0.1} for p in ("scheduling", "read", "prefill")}, "buffer": {"mean": 9.0}}},
            "the DE buffer",
        ),
        ({"tpot_s": {"mean": 2 * COSTS.tpot_base_s}}, "decode steps"),
        ({}, "the sessions' own pace"),
    ],
)
def test_a_bottleneck_has_the_name_of_what_is_full(changes: dict[str, object], name: str) -> None:
    assert bottleneck(_result(**changes), Shape(1, 1), COSTS)[0] == name


def test_decode_steps_bound_a_run_whose_tpot_is_what_comes_nearest_to_the_slo() -> None:
    result = _result(prefill_busy=[0.74], tpot_s={"mean": 0.049}, ttft_s={"mean": 0.42})

    name, why = bottleneck(result, Shape(1, 1), COSTS, Slo(ttft_s=1.2, tpot_s=0.05))

    assert name == "decode steps"
    assert why.startswith("TPOT is 49 ms, wanted at most 50 ms")
    assert bottleneck(result, Shape(1, 1), COSTS, Slo(ttft_s=0.42, tpot_s=0.05))[0] == "prefill compute"


def test_an_offline_plan_orders_the_splits_by_jct_and_sizes_the_best() -> None:
    found = make_plan(Case("ds-660b", "dualpath", "1P1D", SMALL), 3, Slo())

    scores = [split.score for split in found.splits]
    assert scores == sorted(scores)
    assert {split.case.shape for split in found.splits} == {"1P2D", "2P1D"}
    assert [size.name for size in found.sizes] == ["buffer_tokens", "hbm_tokens"]
    assert all(size.enough_tokens <= size.given_tokens for size in found.sizes)
    assert all(size.peak_tokens <= size.given_tokens for size in found.sizes)
    assert all(size.scores[size.enough_tokens] is not None for size in found.sizes)
    assert float(found.free.low) == pytest.approx(1 / 7)


def test_more_prefill_nodes_win_where_prefill_is_the_bottleneck() -> None:
    many = Workload(8_192, 3_000)
    cases = [Case("ds-660b", "dualpath", shape, many) for shape in ("2P4D", "3P3D")]

    found = Plan(judged(cases, run_cases(cases), Slo()), sizes=())

    assert found.best.case.shape == "3P3D"
    assert found.splits[1].bottleneck == "prefill compute"
    assert re.fullmatch(
        r"3P3D beats 2P4D by \d+% \(JCT \d+ s, not \d+ s\); 2P4D is bound by prefill compute: PE groups are busy .*",
        found.reasons()[1],
    )


def test_traffic_alone_rules_out_a_split_outside_the_bottleneck_free_range() -> None:
    found = Plan((), ())

    assert not found.overloaded(Shape(3, 3))
    assert set(found.overloaded(Shape(5, 1))) == {"de_memory", "de_cnic_write"}


def test_the_most_sessions_per_second_within_an_slo_are_found() -> None:
    base = Case("ds-660b", "dualpath", "1P1D", Workload(8_192, 0, until_s=200.0, warm_up_s=50.0))

    [split] = make_plan(base, 2, Slo(ttft_s=0.85)).splits
    [more] = [replace(base, workload=replace(base.workload, aps=round(split.aps + APS_STEP, 10)))]

    assert split.aps > APS_STEP
    assert not split.missed
    assert Slo(ttft_s=0.85).missed(run_cases([more])[more])


def test_a_run_in_which_no_turn_counts_meets_no_slo() -> None:
    base = Case("ds-660b", "dualpath", "1P1D", Workload(8_192, 4, aps=1.0, until_s=1.0, warm_up_s=0.999))

    [split] = make_plan(base, 2, Slo(ttft_s=100.0)).splits

    assert split.missed == ["no turn that counts for latencies ended, wanted at least one"]


@pytest.mark.parametrize("wanted", [-1.0, float("nan"), float("inf")])
def test_an_slo_is_a_span_of_time(wanted: float) -> None:
    with pytest.raises(Rejected, match=r"slo_tpot_s is .*, wanted a finite number of at least 0"):
        Slo(tpot_s=wanted)


def test_where_all_miss_the_nearest_to_the_slo_comes_first() -> None:
    cases = [Case("ds-660b", "dualpath", shape, SMALL) for shape in ("1P2D", "2P1D")]
    slow = _result(tpot_s={"mean": 0.09}, ttft_s={"mean": 0.1})
    near = _result(tpot_s={"mean": 0.06}, ttft_s={"mean": 3.0})

    found = judged(cases, {cases[0]: slow, cases[1]: near}, Slo(tpot_s=0.05))

    assert [split.case.shape for split in found] == ["2P1D", "1P2D"]
    assert found[0].missed == ["mean TPOT is 0.060 s, wanted at most 0.05 s"]


@pytest.mark.parametrize("needed", [1, 130, 400, 700, 999, 1000])
def test_the_least_size_is_found_in_a_few_tries(needed: int) -> None:
    search, tries = _Least(1000), 0
    while (tokens := search.next_tokens) is not None:
        search.tried(tokens, is_enough=tokens >= needed)
        tries += 1

    assert needed <= search.enough_tokens <= max(needed + 1000 / 16, 125)
    assert tries <= 6


def test_an_slo_that_nothing_meets_is_an_error_after_the_table() -> None:
    app = typer.Typer()
    register(app)
    arguments = ["sim", "plan", "--nodes", "2", "--sessions", "8", "--max-len", "8192", "--slo-ttft-s", "0.001"]
    ended = CliRunner().invoke(app, [*arguments, "--aps", "1", "--jobs", "1"])

    assert isinstance(ended.exception, Rejected)
    assert "no split of 2 nodes meets the SLO; of the best, 1P1D, mean TTFT is" in str(ended.exception)
    assert "wanted at most 0.001 s" in str(ended.exception)
    assert "Splits, the best first" in ended.output


def test_a_search_for_arrivals_takes_no_number_of_sessions() -> None:
    app = typer.Typer()
    register(app)
    ended = CliRunner().invoke(app, ["sim", "plan", "--sessions", "8", "--slo-ttft-s", "1"])

    assert isinstance(ended.exception, Rejected)
    assert ended.exception.field == "sessions"


def test_a_plan_is_json_and_kept_results_are_not_run_again(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    arguments = ["sim", "plan", "--nodes", "2", "--sessions", "8", "--max-len", "8192", "--jobs", "1", "--json"]
    first = CliRunner().invoke(app, [*arguments, "--keep", str(tmp_path)])
    files = sorted(path.name for path in tmp_path.iterdir())
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = CliRunner().invoke(app, [*arguments, "--keep", str(tmp_path)])

    body = json.loads(first.output)
    assert body["best"] == "1P1D"
    assert set(body) == {"best", "reasons", "bottleneck_free", "splits", "sizes"}
    assert {"shape", "jct_s", "bottleneck", "why", "prefill_busy", "pe_nic_busy", "de_nic_busy"} <= set(
        body["splits"][0]
    )
    assert second.output == first.output
    assert len(files) >= 2
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
