"""Recorded sessions as the simulator takes them.

The excerpts in tests/data are from GitHub callanjfox/kv-cache-tester and kvcache-ai/Mooncake, both Apache-2.0.
"""

from array import array
from itertools import accumulate
from pathlib import Path

import pytest

from dualpath.client.traces import read_trace, trace_counts
from dualpath.model.errors import Rejected
from dualpath.simulator.workload.sessions import Session, cut_at
from dualpath.simulator.workload.traces import trace_sessions

DATA = Path(__file__).parents[1] / "data"
CLAUDE = DATA / "claude_code_turns.csv"
MOONCAKE = DATA / "mooncake_conversation.jsonl"


def test_a_recorded_session_becomes_arrays_of_its_turns() -> None:
    session = trace_sessions(CLAUDE).sessions[0]

    assert session.appends == array("l", [15_291, 17_401 - 15_232, 20_068 - 17_344])
    assert session.gens == array("l", [2282, 2905, 107])
    assert session.pauses_s == array("d", [0.0, 48.0, 4.0])
    assert session.keeps == array("l", [-1, 15_232, 17_344])


def test_sessions_that_were_recorded_together_keep_their_starts() -> None:
    assert trace_sessions(MOONCAKE).starts_s == (9.0, 21.0, 57.0, 149.999)


def test_sessions_that_were_recorded_apart_all_start_at_zero() -> None:
    assert trace_sessions(CLAUDE).starts_s == (0.0, 0.0)


@pytest.mark.parametrize("path", [CLAUDE, MOONCAKE], ids=lambda path: path.stem)
def test_the_scale_changes_lengths_but_neither_times_nor_counts(path: Path) -> None:
    whole, small = trace_sessions(path), trace_sessions(path, scale=0.1)

    assert small.counts == whole.counts == trace_counts(read_trace(path))
    assert small.starts_s == whole.starts_s
    assert [session.pauses_s for session in small.sessions] == [session.pauses_s for session in whole.sessions]
    assert [max(session.appends) for session in small.sessions] == [
        round(max(session.appends) / 10) for session in whole.sessions
    ]


@pytest.mark.parametrize("path", [CLAUDE, MOONCAKE], ids=lambda path: path.stem)
def test_a_simulated_prompt_is_as_long_as_the_recorded_one(path: Path) -> None:
    recorded = [turn.recorded_prompt for session in read_trace(path) for turn in session.turns]
    prompts = []
    for session in trace_sessions(path).sessions:
        context = 0
        for append, gen, keep in zip(session.appends, session.gens, session.keeps, strict=True):
            prompts.append((context if keep < 0 else keep) + append)
            context = prompts[-1] + gen

    assert prompts == recorded


def test_sessions_without_a_turn_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"start_s": 1, "turns": []}\n{"start_s": 2, "turns": [[5, 1], [6, 1]]}\n')

    workload = trace_sessions(path)

    assert [list(accumulate(session.appends)) for session in workload.sessions] == [[5, 11]]
    assert (workload.starts_s, workload.counts.sessions) == ((2.0,), 1)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("[[5, 1]]\n[[-5, 1]]\n")

    with pytest.raises(Rejected, match=r"line 2: turns\[0\].append is -5; wanted a whole number"):
        trace_sessions(path)


def test_a_simulated_hit_is_as_long_as_the_recorded_one() -> None:
    recorded = read_trace(CLAUDE)[0]
    longer = trace_sessions(CLAUDE).sessions[0]
    prompts = [prompt for _, prompt in longer.prompts()]
    hits = [context for context, _ in longer.prompts()]

    assert prompts == [turn.recorded_prompt for turn in recorded.turns]
    assert hits[1:] == [turn.recorded_hit for turn in recorded.turns[1:]]


def test_a_cut_counts_what_a_session_drops() -> None:
    session = Session(array("l", [100, 10, 50]), array("l", [10, 10, 10]), keeps=array("l", [-1, 20, -1]))

    assert [prompt for _, prompt in session.prompts()] == [100, 30, 90]
    assert cut_at(session, 110).turns == 3
    assert cut_at(session, 99).turns == 1
