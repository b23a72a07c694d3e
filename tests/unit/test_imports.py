"""The import rules in .importlinter hold, so the gate notices a sideways import without `make lint`."""

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_imports_point_down_and_never_sideways() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")

    outcome = subprocess.run([lint_imports, "--no-cache"], cwd=REPO, capture_output=True, text=True, check=False)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
