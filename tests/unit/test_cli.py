"""The command line: what a person gets when it helps, and when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dualpath.cli.cell_config import load_config
from dualpath.model.errors import Rejected
from support import find_free_port

DUALPATH = Path(sys.executable).with_name("dualpath")


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([DUALPATH, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_the_commands_of_every_part() -> None:
    text = _run("--help").stdout

    for command in ("up", "demo", "submit", "replay", "status", "explain", "cancel", "scheduler", "agent", "version"):
        assert f"  {command} " in text


@pytest.mark.parametrize("command", ["up", "replay", "scheduler", "agent"])
def test_help_of_a_command_teaches_with_an_example(command: str) -> None:
    assert "dualpath " in _run(command, "--help").stdout or "shape =" in _run(command, "--help").stdout


def test_version_as_json() -> None:
    assert json.loads(_run("version", "--json").stdout) == {"version": "0.1.0"}


def test_an_address_where_nobody_listens_is_named() -> None:
    ended = _run("status", "--address", f"127.0.0.1:{find_free_port()}")

    assert ended.returncode == 75
    assert "error:" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_trace_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("[1]\n")
    ended = _run("replay", str(path))

    assert ended.returncode == 65
    assert f"{path}, line 1" in ended.stderr


def test_settings_that_make_no_sense_are_named() -> None:
    scheduler = _run("scheduler", "--policy", "best")
    agent = _run("agent", "--role", "both", "--node-id", "n", "--group-id", "g")

    assert (scheduler.returncode, agent.returncode) == (2, 2)
    assert "policy is 'best', wanted one of basic, dualpath, roundrobin" in scheduler.stderr
    assert "--role" in agent.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('shape = "2X"', "shape is '2X', wanted like 1P2D"),
        ("shappe = 1", "known fields: shape"),
        ("shape = ", "Invalid value"),
    ],
)
def test_a_bad_cell_file_is_named_with_the_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "cell.toml"
    path.write_text(text)

    with pytest.raises(Rejected, match=says):
        load_config(path)


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_text('shape = "2P3D"\npolicy = "basic"\n')
    config = load_config(path, policy="dualpath", shape=None)

    assert (config.prefill_nodes, config.decode_nodes, config.policy) == (2, 3, "dualpath")
