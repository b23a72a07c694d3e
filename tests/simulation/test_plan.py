"""The capacity plan on small workloads, and what it calls a bottleneck."""

import json
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
from dualpath.simulator.runs.plan import Slo, bottleneck, make_plan, shapes_of

COSTS = load_profile("ds-660b").costs
SMALL = Workload(16_384, 24)


def _result(**changes: object) -> dict[str, object]:
    idle = {part: {"mean": 0.1} for part in ("scheduling", "buffer", "read", "prefill")}
    return {
        "nic_busy": [0.1, 0.1],
        "prefill_busy": [0.1],
        "hbm_peak_tokens": 1000,
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
        (
            {
                "hbm_peak_tokens": COSTS.hbm_tokens,
                "parts_s": {**{p: {"mean": 0.1} for p in ("buffer", "read", "prefill")}, "scheduling": {"mean": 9.0}},
            },
            "decode HBM",
        ),
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


def test_an_offline_plan_orders_the_splits_by_jct_and_sizes_the_best() -> None:
    found = make_plan(Case("ds-660b", "dualpath", "1P1D", SMALL), 3, Slo())

    scores = [split.score for split in found.splits]
    assert scores == sorted(scores)
    assert {split.case.shape for split in found.splits} == {"1P2D", "2P1D"}
    assert [size.name for size in found.sizes] == ["buffer_tokens", "hbm_tokens"]
    assert all(size.enough_tokens <= size.given_tokens for size in found.sizes)
    assert all(size.peak_tokens <= size.given_tokens for size in found.sizes)
    assert float(found.free.low) == pytest.approx(1 / 7)


def test_the_most_sessions_per_second_within_an_slo_are_found() -> None:
    base = Case("ds-660b", "dualpath", "1P1D", Workload(16_384, 0, until_s=400.0, warm_up_s=100.0))

    [split] = make_plan(base, 2, Slo(ttft_s=1.0)).splits
    worse = make_plan(replace(base, workload=replace(base.workload, aps=split.aps + 0.05)), 2, Slo(ttft_s=1.0))

    assert split.aps > 0
    assert not split.missed
    assert worse.best.missed


def test_an_slo_that_nothing_meets_is_an_error_after_the_table() -> None:
    app = typer.Typer()
    register(app)
    arguments = ["sim", "plan", "--nodes", "2", "--sessions", "8", "--max-len", "8192", "--slo-ttft-s", "0.001"]
    ended = CliRunner().invoke(app, [*arguments, "--aps", "1", "--jobs", "1"])

    assert isinstance(ended.exception, Rejected)
    assert "no split of 2 nodes meets the SLO; of the best, 1P1D, mean TTFT is" in str(ended.exception)
    assert "Splits, the best first" in ended.output


def test_a_plan_is_json_and_kept_results_are_not_run_again(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    arguments = ["sim", "plan", "--nodes", "2", "--sessions", "8", "--max-len", "8192", "--jobs", "1", "--json"]
    first = CliRunner().invoke(app, [*arguments, "--keep", str(tmp_path)])
    files = sorted(path.name for path in tmp_path.iterdir())
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = CliRunner().invoke(app, [*arguments, "--keep", str(tmp_path)])

    assert json.loads(first.output)["best"] == "1P1D"
    assert second.output == first.output
    assert len(files) >= 2
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
