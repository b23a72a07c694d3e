"""The formats of recorded sessions, value by value: what cannot be true is named with its line (see traces.py)."""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualpath.client.trace_values import (
    INSTANT_S_MAX,
    PAUSE_S_MAX,
    TOKENS_MAX,
    TURN_NUMBER_MAX,
    BadValue,
    Call,
    Recording,
    When,
    bad_line,
    cell_seconds,
    cell_whole,
    hash_ids,
    listed,
    member,
    named,
    parsed_json,
    pause_before_s,
    seconds,
    shown,
    whole,
)
from dualpath.model.errors import Rejected

MOONCAKE_BLOCK = 512
CLAUDE_BLOCK = 64
SNIFF_CHARS = 2048
TRACE_BYTES_MAX = 1 << 30  # of text, unpacked

CSV_REQUIRED = ("session", "is_subagent", "input_tokens", "hit_tokens", "output_tokens")
CSV_OPTIONAL = ("turn", "t_s", "think_s", "api_s")
CSV_WANTED = ", ".join(CSV_REQUIRED)
CSV_KNOWN = frozenset((*CSV_REQUIRED, *CSV_OPTIONAL))
MOONCAKE_MARKS = frozenset(("input_length", "output_length", "hash_ids"))
CLAUDE_JSON_MARK = re.compile(r'"(?:hash_id_scope|requests)"\s*:')
SIMPLE_TURN = '{"append": n, "gen": n} or [append, gen]'


def read_recordings(path: Path) -> list[Recording]:
    """All sessions of a trace as recorded; raises Rejected as read_trace does."""
    text = _text_of(path)
    head = text.lstrip()[:SNIFF_CHARS]
    if not head:
        raise Rejected(f"{path} is empty", field="trace")
    if head[0] == "{" and CLAUDE_JSON_MARK.search(head):
        recordings = _claude_json(path, text)
    elif head[0] in "{[":
        recordings = _jsonl(path, text)
    elif not CSV_KNOWN.isdisjoint(cell.strip() for cell in head.splitlines()[0].split(",")):
        recordings = _claude_csv(path, text)
    else:
        line = text[: len(text) - len(text.lstrip())].count("\n") + 1
        found = f"the trace begins with {shown(head.splitlines()[0])}"
        raise bad_line(path, line, BadValue(found, f"a CSV header with {CSV_WANTED}, or one JSON value per line"))
    if not any(recording.calls for recording in recordings):
        bad = BadValue("the trace ends without a turn", "at least one (calls of sub-agents do not count)")
        raise bad_line(path, text.rstrip().count("\n") + 1, bad)
    return recordings


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(TRACE_BYTES_MAX + 1)
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror or error}", field="trace") from error
    try:
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(TRACE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Rejected(f"{path}: damaged or cut off: {error}; wanted a whole gzip file", field="trace") from error
    if len(raw) > TRACE_BYTES_MAX:
        raise Rejected(f"{path} has more than {TRACE_BYTES_MAX} bytes of text, wanted at most that", field="trace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        found = f"byte {error.object[error.start]:#04x} is no UTF-8"
        raise bad_line(path, line, BadValue(found, "CSV or JSON as text, plain or gzip")) from error


def _claude_csv(path: Path, text: str) -> list[Recording]:
    calls: _CsvCalls | None = None
    for line, row in _csv_rows(path, text):
        try:
            if calls is None:
                calls = _CsvCalls(_csv_columns(row))
            else:
                calls.read(row)
        except BadValue as bad:
            raise bad_line(path, line, bad) from bad
    return list(calls.recordings.values()) if calls is not None else []


class _CsvCalls:
    """Main sessions only: sub-agents' calls interleave in one sequence that no context runs through."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.recordings: dict[str, Recording] = {}
        self._columns = columns
        self._last: dict[str, tuple[int, When]] = {}

    def read(self, row: list[str]) -> None:
        cells = _csv_cells(self._columns, row)
        prompt, hit, gen = (
            cell_whole(name, cells[name], TOKENS_MAX) for name in ("input_tokens", "hit_tokens", "output_tokens")
        )
        if hit > prompt:
            raise BadValue(f"hit_tokens is {hit}", f"at most the {prompt} of input_tokens")
        turn = cell_whole("turn", cells["turn"], TURN_NUMBER_MAX) if "turn" in cells else None
        when = When(
            cell_seconds("t_s", cells["t_s"], INSTANT_S_MAX) if "t_s" in cells else None,
            cell_seconds("think_s", cells["think_s"], PAUSE_S_MAX) if cells.get("think_s") else None,
            cell_seconds("api_s", cells["api_s"], PAUSE_S_MAX) if cells.get("api_s") else None,
        )
        if cell_whole("is_subagent", cells["is_subagent"], 1):
            return
        name = cells["session"]
        turn_before, before = self._last.get(name, (-1, None))
        if turn is not None and turn <= turn_before:
            raise BadValue(f"turn is {turn}", f"more than {turn_before}, the session's previous turn")
        pause_s = pause_before_s("t_s", before, when)
        self._last[name] = (-1 if turn is None else turn, when)
        self.recordings.setdefault(name, Recording(name, 0.0, [])).calls.append(Call(prompt, gen, hit, pause_s))


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line it begins on."""
    reader = csv.reader(io.StringIO(text), strict=True)  # else a stray quote joins two lines
    begins = 1
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        raise bad_line(path, begins, BadValue(str(error), "comma-separated values")) from error


def _csv_columns(header: list[str]) -> tuple[str, ...]:
    columns = tuple(name.strip() for name in header)
    if unknown := [name for name in columns if name not in CSV_KNOWN]:
        found = ", ".join(shown(name) for name in unknown)
        raise BadValue(f"unknown columns {found}", f"{CSV_WANTED}, and perhaps {', '.join(CSV_OPTIONAL)}")
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise BadValue(f"column {twice[0]} is there {columns.count(twice[0])} times", "each column once")
    return columns


def _csv_cells(columns: tuple[str, ...], row: list[str]) -> dict[str, str]:
    for name in CSV_REQUIRED:
        if name not in columns:
            raise BadValue(f"no field '{name}'", CSV_WANTED)
    if len(row) != len(columns):
        absent = f", none for {columns[len(row)]}" if len(row) < len(columns) else ""
        raise BadValue(f"{len(row)} values{absent}", f"{len(columns)} as in the header")
    cells = dict(zip(columns, row, strict=True))
    if not cells["session"].strip():
        raise BadValue("session is empty", "a name")
    return cells


def _claude_json(path: Path, text: str) -> list[Recording]:
    """One session is one JSON value; a bad value within is named with the line it begins on, the first."""
    try:
        session = parsed_json(text)
        if (block := session.get("block_size", CLAUDE_BLOCK)) != CLAUDE_BLOCK:
            raise BadValue(f"block_size is {shown(block)}", f"{CLAUDE_BLOCK}")
        name = named("id", session.get("id", path.stem))
        return [Recording(name, 0.0, list(_claude_calls(listed("requests", member(session, "requests")))))]
    except BadValue as bad:
        raise bad_line(path, bad.line, bad) from bad


def _claude_calls(requests: list[Any]) -> Iterator[Call]:
    seen: list[int] = []
    before: When | None = None
    for index, request in enumerate(requests):
        at = f"requests[{index}]"
        if isinstance(request, dict) and request.get("type") == "subagent":
            continue  # it runs beside the main session, in requests of its own
        prompt = whole(f"{at}.in", member(request, "in", at), TOKENS_MAX)
        gen = whole(f"{at}.out", member(request, "out", at), TOKENS_MAX)
        ids = hash_ids(f"{at}.hash_ids", request.get("hash_ids", []), prompt=prompt, block=CLAUDE_BLOCK)
        shared = next((i for i, (a, b) in enumerate(zip(ids, seen, strict=False)) if a != b), min(len(ids), len(seen)))
        when = When(
            _recorded_s(request, "t", at, INSTANT_S_MAX),
            _recorded_s(request, "think_time", at, PAUSE_S_MAX),
            _recorded_s(request, "api_time", at, PAUSE_S_MAX),
        )
        yield Call(
            prompt, gen, min(shared, prompt // CLAUDE_BLOCK) * CLAUDE_BLOCK, pause_before_s(f"{at}.t", before, when)
        )
        seen, before = ids, when


def _recorded_s(request: dict[str, Any], name: str, at: str, high: int) -> float | None:
    return None if request.get(name) is None else seconds(f"{at}.{name}", request[name], high)


def _jsonl(path: Path, text: str) -> list[Recording]:
    recordings: list[Recording] = []
    mooncake: _Mooncake | None = None
    for line, written in enumerate(io.StringIO(text, newline=None), start=1):
        if not written.strip():
            continue
        try:
            value = parsed_json(written)
            if not recordings and mooncake is None and isinstance(value, dict) and not MOONCAKE_MARKS.isdisjoint(value):
                mooncake = _Mooncake()
            if mooncake is not None:
                mooncake.read(line, value)
            else:
                recordings.append(_simple(line, value))
        except BadValue as bad:
            raise bad_line(path, line, bad) from bad
    return list(mooncake.recordings.values()) if mooncake is not None else recordings


class _Mooncake:
    """Requests linked to sessions: one continues the session whose last whole block is among its own blocks."""

    def __init__(self) -> None:
        self.recordings: dict[str, Recording] = {}
        self._open_at: dict[int, str] = {}
        self._last: dict[str, When] = {}

    def read(self, line: int, request: Any) -> None:
        at_s = seconds("timestamp", member(request, "timestamp"), INSTANT_S_MAX * 1000) / 1000
        prompt = whole("input_length", member(request, "input_length"), TOKENS_MAX)
        gen = whole("output_length", member(request, "output_length"), TOKENS_MAX)
        ids = hash_ids("hash_ids", member(request, "hash_ids"), prompt=prompt, block=MOONCAKE_BLOCK)
        full = ids[: prompt // MOONCAKE_BLOCK]
        found = next((i for i in range(len(full) - 1, -1, -1) if full[i] in self._open_at), None)
        name = f"line {line}" if found is None else self._open_at[full[found]]
        hit = 0 if found is None else (found + 1) * MOONCAKE_BLOCK
        when = When(at_s)
        pause_s = pause_before_s("timestamp", self._last.get(name), when)
        self._last[name] = when
        self.recordings.setdefault(name, Recording(name, at_s, [])).calls.append(Call(prompt, gen, hit, pause_s))
        if len(full) > 1:  # one block alone may be the system prompt of many sessions
            self._open_at[full[-1]] = name


def _simple(line: int, value: Any) -> Recording:
    if isinstance(value, list):
        value = {"turns": value}
    turns = listed("turns", member(value, "turns"))
    start_s = seconds("start_s", value.get("start_s", 0.0), INSTANT_S_MAX)
    recording = Recording(named("session", value.get("session", f"line {line}")), start_s, [])
    context = 0
    for index, turn in enumerate(turns):
        at = f"turns[{index}]"
        if isinstance(turn, list):
            if len(turn) != 2:
                raise BadValue(f"{at} has {len(turn)} values", SIMPLE_TURN)
            turn = {"append": turn[0], "gen": turn[1]}
        if not isinstance(turn, dict):
            raise BadValue(f"{at} is {shown(turn)}", SIMPLE_TURN)
        append = whole(f"{at}.append", member(turn, "append", at), TOKENS_MAX)
        gen = whole(f"{at}.gen", member(turn, "gen", at), TOKENS_MAX)
        pause_s = seconds(f"{at}.pause_s", turn.get("pause_s", 0.0), PAUSE_S_MAX)
        recording.calls.append(Call(context + append, gen, None, pause_s if index else 0.0, append))
        context += append + gen
    return recording
