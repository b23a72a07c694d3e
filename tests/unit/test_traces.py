"""Recorded sessions: formats, scaling, compaction, times, counts (bad lines: test_trace_errors.py)."""

import gzip
import json
from pathlib import Path

import pytest

from dualpath.client.traces import TraceCounts, TraceSession, TraceTurn, read_trace, select, trace_counts
from dualpath.model.errors import Rejected

HEAD = "session,is_subagent,turn,t_s,input_tokens,hit_tokens,output_tokens,think_s,api_s\n"
EXCERPT = Path(__file__).parents[2] / "examples/traces/claude_code_excerpt.csv"
# Lines from GitHub callanjfox/kv-cache-tester and kvcache-ai/Mooncake, both Apache-2.0; its README says which.
DATA = Path(__file__).parents[1] / "data"


def _write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_whole_prompts_become_appends(tmp_path: Path) -> None:
    path = _write(tmp_path, HEAD + "a,0,0,0,100,0,10,0,1\na,0,1,0,150,64,5,0,1\n")

    assert read_trace(path) == (TraceSession("a", (TraceTurn(100, 10), TraceTurn(40, 5))),)


def test_sub_agents_are_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path, HEAD + "a,0,0,0,100,0,10,0,1\na,1,0,0,30,0,5,0,1\n")

    assert [len(session.turns) for session in read_trace(path)] == [1]


def test_a_compacted_context_keeps_what_still_hit(tmp_path: Path) -> None:
    path = _write(tmp_path, HEAD + "a,0,0,0,1000,0,10,0,1\na,0,1,0,300,128,5,0,1\n")

    assert read_trace(path)[0].turns[1] == TraceTurn(172, 5, keep=128)


def test_scaling_does_not_add_up_rounding(tmp_path: Path) -> None:
    rows = "".join(f"a,0,{n},0,{10_000 + 105 * n},0,4,0,1\n" for n in range(50))
    [session] = read_trace(_write(tmp_path, HEAD + rows), scale=0.1)

    prompt = sum(turn.append for turn in session.turns) + sum(turn.gen for turn in session.turns[:-1])
    assert prompt == round((10_000 + 105 * 49) * 0.1)


def test_compressed_files_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((HEAD + "a,0,0,0,100,0,10,0,1\n").encode()))

    assert len(read_trace(path)) == 1


def test_mooncake_requests_that_share_blocks_are_one_session(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
        {"timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [7, 8]},
        {"timestamp": 9, "input_length": 1700, "output_length": 30, "hash_ids": [1, 2, 4, 5]},
    ]
    sessions = read_trace(_write(tmp_path, "\n".join(json.dumps(row) for row in rows)))

    assert [len(session.turns) for session in sessions] == [2, 1]
    assert sessions[0].turns == (TraceTurn(1100, 20), TraceTurn(580, 30, pause_s=0.009))


def test_one_claude_session_with_hash_ids(tmp_path: Path) -> None:
    requests = [{"in": 130, "out": 5, "hash_ids": [1, 2]}, {"in": 200, "out": 5, "hash_ids": [1, 2, 3]}]
    body = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": requests}

    [session] = read_trace(_write(tmp_path, json.dumps(body)))

    assert (session.name, session.turns) == ("x", (TraceTurn(130, 5), TraceTurn(65, 5)))


def test_simple_lines(tmp_path: Path) -> None:
    text = '{"session": "a", "turns": [{"append": 30, "gen": 2}]}\n[{"append": 5, "gen": 1}]\n'

    assert [session.turns[0] for session in read_trace(_write(tmp_path, text))] == [TraceTurn(30, 2), TraceTurn(5, 1)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        (HEAD + "a,0,0,0,many,0,10,0,1\n", "line 2: invalid literal"),
        ("session,turn\na,1\n", "line 2: no field 'is_subagent'; wanted session"),
        ('[{"append": 5, "gen": 1}]\nnonsense\n', "line 2: Expecting value"),
        ('{"turns": [{"append": 5}]}\n', "line 1: no field 'gen'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Rejected, match=says):
        read_trace(_write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"nowhere.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv")


def test_selection_cuts_sessions_turns_and_context() -> None:
    sessions = (TraceSession("a", (TraceTurn(10, 1),) * 5), TraceSession("b", (TraceTurn(99, 1),)))

    assert len(select(sessions, count=1, turns_max=3, context_max=None)[0].turns) == 3
    assert len(select(sessions, count=None, turns_max=None, context_max=22)[0].turns) == 2
    assert len(select(sessions, count=None, turns_max=None, context_max=22)) == 1


def test_the_shipped_excerpt_is_what_its_readme_says() -> None:
    sessions = read_trace(EXCERPT)

    assert len(sessions) == 12
    assert {len(session.turns) for session in sessions} == {20}
    assert all(turn.keep is None for session in sessions for turn in session.turns)


def test_a_pause_that_is_not_recorded_is_bounded_by_the_submissions(tmp_path: Path) -> None:
    rows = "a,0,0,0,100,0,10,0,3\na,0,1,10,150,64,5,,\na,0,2,25,200,128,5,,2\na,0,3,26,250,192,5,,\n"

    [session] = read_trace(_write(tmp_path, HEAD + rows))

    assert [turn.pause_s for turn in session.turns] == [0.0, 7.0, 15.0, 0.0]


def test_columns_of_times_and_turns_are_optional(tmp_path: Path) -> None:
    text = "input_tokens,session,is_subagent,output_tokens,hit_tokens\n100,a,0,10,0\n150,a,0,5,64\n"

    assert read_trace(_write(tmp_path, text)) == (TraceSession("a", (TraceTurn(100, 10), TraceTurn(40, 5))),)


def test_sub_agents_of_a_published_session_are_left_out(tmp_path: Path) -> None:
    calls = [{"t": 0.0, "in": 130, "out": 5}, {"type": "subagent", "t": 2.0, "requests": []}, {"in": 200, "out": 5}]

    [session] = read_trace(_write(tmp_path, json.dumps({"hash_id_scope": "local", "requests": calls})))

    assert [turn.recorded_prompt for turn in session.turns] == [130, 200]


def test_simple_lines_may_say_starts_and_pauses(tmp_path: Path) -> None:
    turns = [{"append": 5, "gen": 1, "pause_s": 9}, {"append": 6, "gen": 1, "pause_s": 2.5}]

    sessions = read_trace(_write(tmp_path, json.dumps({"start_s": 7, "turns": turns}) + "\n[[5, 1]]"), scale=2)

    assert sessions == (
        TraceSession("line 1", (TraceTurn(10, 2), TraceTurn(12, 2, pause_s=2.5)), start_s=7.0),
        TraceSession("line 2", (TraceTurn(10, 2),)),
    )


def test_a_cut_session_keeps_its_start() -> None:
    sessions = (TraceSession("a", (TraceTurn(10, 1), TraceTurn(10, 1)), start_s=4.0),)

    assert select(sessions, count=None, turns_max=1, context_max=None)[0].start_s == 4.0


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_the_counts_of_real_calls_do_not_depend_on_the_scale(scale: float) -> None:
    # counted from the columns by hand; the empty think_s of two calls are 21 and 14 s between submissions
    assert trace_counts(read_trace(DATA / "claude_code_turns.csv", scale=scale)) == TraceCounts(
        sessions=2,
        turns=9,
        turns_mean=4.5,
        turns_median=4.5,
        input_mean_tokens=846_593 / 9,
        input_median_tokens=125_709,
        append_median_tokens=5_164,
        output_mean_tokens=6_589 / 9,
        token_hit_rate=679_744 / 846_593,
        pause_median_s=21.0,
        pause_p90_s=48.0,
    )


def test_the_hit_rate_of_linked_requests_is_that_of_the_linking() -> None:
    counts = trace_counts(read_trace(DATA / "mooncake_conversation.jsonl"))

    # 10 requests of 22569 tokens; 22 blocks of 512 tokens were there when the next request of their session came
    assert (counts.sessions, counts.turns, counts.token_hit_rate) == (4, 10, 22 * 512 / 22_569)
    assert (counts.pause_median_s, counts.pause_p90_s) == (96.0, 246.0)


def test_counts_of_sessions_without_records_come_from_their_turns() -> None:
    counts = trace_counts([TraceSession("a", (TraceTurn(10, 1), TraceTurn(20, 3), TraceTurn(5, 2, keep=4)))])

    assert (counts.input_mean_tokens, counts.append_median_tokens, counts.output_mean_tokens) == (50 / 3, 10, 2.0)
    assert counts.token_hit_rate is None


def test_what_has_no_turn_is_not_counted() -> None:
    with pytest.raises(Rejected, match="no session has a turn"):
        trace_counts([TraceSession("a", ())])
