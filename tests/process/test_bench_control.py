"""The control plane benchmark works: a short run of it at a low rate, and every turn committed once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RATE, SECONDS = 100, 2


def _run(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report of an open loop on eight engines."""
    out = folder / "control.json"
    options = ["--part", "open", "--open-engines", "8", "--rate", str(RATE), "--seconds", str(SECONDS)]
    options += ["--warm-up", "0.2", "--folder", str(folder / "run"), "--out", str(out), *more]
    done = subprocess.run([sys.executable, "-m", "benchmarks.control", *options], cwd=ROOT, timeout=100)
    return done.returncode, json.loads(out.read_text())


def test_a_short_run_commits_every_turn_once_and_fills_in_its_figures(tmp_path: Path) -> None:
    status, report = _run(tmp_path)

    run = report["open"][str(RATE)]
    assert report["errors"] == []  # plans, acknowledgements and ends of each turn are counted, and the scheduler asked
    assert (status, run["errors"]) == (0, 0)
    assert 0.5 * RATE * SECONDS < run["turns"] < 1.5 * RATE * SECONDS
    assert run["scheduler_cpu_us_per_turn"] > 0
    assert 0 < run["accept_p50_ms"] <= run["accept_p99_ms"]
    assert 0 <= run["assign_p50_ms"] <= run["assign_p99_ms"]


def test_a_refused_turn_is_an_error_of_the_run(tmp_path: Path) -> None:
    status, report = _run(tmp_path, "--scheduler-argument=--waiting-turns-max=1")

    assert status == 1
    assert "OVERLOADED" in report["errors"][0]
