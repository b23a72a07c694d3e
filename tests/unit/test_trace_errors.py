"""What cannot be true in a trace is rejected with its file, its line, its field, what was found and what was wanted."""

import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from dualpath.client import trace_formats
from dualpath.client.traces import read_trace
from dualpath.model.errors import Rejected

HEAD = "session,is_subagent,turn,t_s,input_tokens,hit_tokens,output_tokens,think_s,api_s\n"

# Two good turns of one session in each format; a defect goes into the second one.
CSV_ROWS = (
    {"session": "a", "is_subagent": 0, "turn": 0, "t_s": 1.0, "input_tokens": 100, "hit_tokens": 0}
    | {"output_tokens": 9, "think_s": 0.0, "api_s": 1.0},
    {"session": "a", "is_subagent": 0, "turn": 1, "t_s": 6.0, "input_tokens": 200, "hit_tokens": 64}
    | {"output_tokens": 9, "think_s": 4.0, "api_s": 1.0},
)
CLAUDE_CALLS = (
    {"t": 1.0, "in": 130, "out": 5, "hash_ids": [1, 2], "think_time": 0.0, "api_time": 1.0},
    {"t": 9.0, "in": 200, "out": 5, "hash_ids": [1, 2, 3], "think_time": 7.0, "api_time": 1.0},
)
MOONCAKE_LINES = (
    {"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
    {"timestamp": 5000, "input_length": 1700, "output_length": 9, "hash_ids": [1, 2, 4]},
)
SIMPLE_TURNS = ({"append": 5, "gen": 1}, {"append": 5, "gen": 1, "pause_s": 2.0})
LINE = {"csv": 3, "claude": 1, "mooncake": 2, "simple": 2}
WHOLE_NUMBERS = {
    "csv": ("is_subagent", "turn", "input_tokens", "hit_tokens", "output_tokens"),
    "claude": ("in", "out"),
    "mooncake": ("input_length", "output_length"),
    "simple": ("append", "gen"),
}
SECONDS = {
    "csv": ("t_s", "think_s", "api_s"),
    "claude": ("t", "think_time", "api_time"),
    "mooncake": ("timestamp",),
    "simple": ("pause_s", "start_s"),
}
ABSENT = object()


def _write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def _trace(form: str, **changed: object) -> str:
    """Two lines (Claude JSON: two calls in one line); values of the second one are changed or absent."""
    if form == "csv":
        rows = [CSV_ROWS[0], CSV_ROWS[1] | {name: "" if value is ABSENT else value for name, value in changed.items()}]
        return HEAD + "".join(",".join(str(row[name]) for name in HEAD.strip().split(",")) + "\n" for row in rows)
    if form == "claude":
        body = {"id": "x", "hash_id_scope": "local", "requests": [CLAUDE_CALLS[0], _changed(CLAUDE_CALLS[1], changed)]}
        return json.dumps(body)
    if form == "mooncake":
        return "\n".join(json.dumps(line) for line in (MOONCAKE_LINES[0], _changed(MOONCAKE_LINES[1], changed)))
    of_line = {name: value for name, value in changed.items() if name in ("session", "start_s", "turns")}
    of_turn = {name: value for name, value in changed.items() if name not in of_line}
    line = {"start_s": 1.0, "turns": [SIMPLE_TURNS[0], _changed(SIMPLE_TURNS[1], of_turn)]}
    return f"[[5, 1]]\n{json.dumps(_changed(line, of_line))}\n"


def _changed(value: Mapping[str, object], changed: Mapping[str, object]) -> dict[str, object]:
    return {name: part for name, part in {**value, **changed}.items() if part is not ABSENT}


def _defects() -> Iterator[tuple[str, str, object]]:
    """Format, field, and a value that it cannot have."""
    for form, names in WHOLE_NUMBERS.items():
        values: tuple[object, ...] = (-1, 5.5, math.nan, 10_000_001, "many", "9" * 5000, ABSENT)
        if form != "csv":
            values += (None, True, [5])
        yield from itertools.product([form], names, values)
    for form, names in SECONDS.items():
        yield from itertools.product([form], names, (-1.0, math.nan, math.inf, 1e14, "soon"))
    pauses = (("csv", "think_s"), ("csv", "api_s"), ("claude", "think_time"), ("claude", "api_time"))
    yield from ((form, name, 30 * 86_400 + 1) for form, name in (*pauses, ("simple", "pause_s")))
    yield from (("csv", "session", ABSENT), ("csv", "t_s", ABSENT), ("csv", "think_s", " "))
    yield from (("mooncake", "timestamp", ABSENT), ("mooncake", "hash_ids", ABSENT))
    yield from itertools.product(["simple"], ["session"], (None, "", [1]))
    yield from itertools.product(["simple"], ["turns"], (ABSENT, None, 5, [5], [[5]], [[5, 1, 1]], {"append": 5}))
    # more hit than there is prompt
    yield ("csv", "hit_tokens", 201)
    yield from itertools.product(["claude", "mooncake"], ["hash_ids"], ([1, 2, 3, 4, 5], 5, ["a"], [-1], [1.5]))
    # an order that goes back, or too far on
    yield from (("csv", "turn", 0), ("csv", "t_s", 0.5), ("claude", "t", 0.5), ("mooncake", "timestamp", 999))
    yield ("mooncake", "timestamp", (30 * 86_400 + 2) * 1000)


@pytest.mark.parametrize(("form", "field", "value"), tuple(_defects()), ids=lambda part: str(part)[:16])
def test_a_value_that_cannot_be_is_named_with_its_line_and_field(
    tmp_path: Path, form: str, field: str, value: object
) -> None:
    path = _write(tmp_path, _trace(form, **{field: value}))

    with pytest.raises(Rejected, match=rf"trace, line {LINE[form]}: .*\b{field}\b.*; wanted ") as raised:
        read_trace(path)
    assert len(str(raised.value)) < len(str(path)) + 200


@pytest.mark.parametrize("form", LINE)
def test_the_same_lines_without_a_defect_are_read(tmp_path: Path, form: str) -> None:
    last = read_trace(_write(tmp_path, _trace(form)))[-1]

    assert [turn.pause_s for turn in last.turns] == [
        0.0,
        {"csv": 4.0, "claude": 7.0, "mooncake": 4.0, "simple": 2.0}[form],
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD.replace("api_s", "colour,mood") + "a\n", "line 1: unknown columns 'colour', 'mood'; wanted session, "),
        (HEAD.replace("api_s", "turn") + "a\n", "line 1: column turn is there 2 times; wanted each column once"),
        (HEAD + "a,0,0,0,100,0,10,0\n", "line 2: 8 values, none for api_s; wanted 9 as in the header"),
        (HEAD + "\na,0,0,0,100,0,10,0,1,7\n", "line 3: 10 values; wanted 9"),
        (
            HEAD + '"a,0,0,0,100,0,10,0,1\n"a,0,1,0,100,0,10,0,1\n',
            "line 2: .* expected after .*; wanted comma-separated",
        ),
        (
            HEAD + 'a,0,0,0,100,0,10,0,1\n"a,0,1,0,100,0,10,0,1\n',
            "line 3: unexpected end of data; wanted comma-separated",
        ),
        (HEAD + '"' + "a" * 200_000, "line 2: field larger than field limit"),
        (HEAD, "line 1: the trace ends without a turn; wanted at least one"),
        (HEAD + "a,1,0,0,100,0,10,0,1\n", "line 2: the trace ends without a turn; wanted at least one"),
        ('{"turns": []}\n[]\n', "line 2: the trace ends without a turn; wanted at least one"),
        ('{"requests": []}', "line 1: the trace ends without a turn; wanted at least one"),
        ('{"requests": [5]}', r"line 1: requests\[0\] is 5; wanted an object with in"),
        ('{"requests": 5}', "line 1: requests is 5; wanted a list"),
        ('{"block_size": 16, "requests": []}', "line 1: block_size is 16; wanted 64"),
        ('{"requests": [\n{"in": }]}', "line 2: Expecting value at column 8"),
        ('{"turns": [{"append": 5, "gen": ' + "9" * 5000 + "}]}", "line 1: Exceeds the limit"),
        ("[" * 100_000, "line 1: .*recursion.*; wanted one JSON value per line"),
        ('[[5, 1]]\n"words"\n', "line 2: the line is .words.; wanted an object with turns"),
        ("\nname;tokens\na;5\n", "line 2: the trace begins with 'name;tokens'; wanted a CSV header with session, "),
        ("\0\1\2", r"line 1: the trace begins with '\\x00.*; wanted a CSV header"),
    ],
    ids=lambda part: part[:24].strip(),
)
def test_a_trace_that_is_none_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Rejected, match=says):
        read_trace(_write(tmp_path, text))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (gzip.compress(HEAD.encode() * 100)[:-20], "damaged or cut off: .*; wanted a whole gzip file"),
        (gzip.compress(HEAD.encode())[:6], "damaged or cut off"),
        (gzip.compress(b"")[:10] + b"\xff" * 40, "damaged or cut off"),
        (HEAD.encode() + b"\x93\x88\xfe", "line 2: byte 0x93 is no UTF-8; wanted CSV or JSON as text"),
        (gzip.compress(b"\xff\xfe{"), "line 1: byte 0xff is no UTF-8"),
    ],
    ids=["cut gzip", "cut gzip header", "bad gzip", "bytes after text", "packed bytes"],
)
def test_bytes_that_are_no_text_are_named(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(raw)

    with pytest.raises(Rejected, match=says):
        read_trace(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_text_over_the_bound_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(trace_formats, "TRACE_BYTES_MAX", 200)
    path = tmp_path / "trace"
    path.write_bytes(pack(HEAD.encode() * 3))

    with pytest.raises(Rejected, match="trace has more than 200 bytes of text"):
        read_trace(path)
