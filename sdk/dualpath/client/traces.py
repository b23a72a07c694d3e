"""Recorded agent sessions, read from several formats and scaled to a small model (paper §7).

    Claude Code CSV     columns session, is_subagent, turn, input_tokens, hit_tokens, output_tokens (.csv, .csv.gz)
    Claude Code JSON    one session with hash ids per 64 tokens
    Mooncake JSONL      input_length, output_length, hash_ids per 512 tokens; a shared prefix makes one session
    simple JSONL        {"turns": [{"append": 300, "gen": 20}, ...]} per line, or a bare list of such pairs

A recorded prompt that is shorter than the session so far (the agent compacted its context) becomes a turn that keeps
only the prefix which still hit, and appends the rest.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath.model.errors import Rejected

MOONCAKE_BLOCK = 512
CLAUDE_BLOCK = 64
SNIFF_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One recorded turn: keep the first `keep` tokens of the context (None: all), append, generate."""

    append: int
    gen: int
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class TraceSession:
    """One recorded session in order."""

    name: str
    turns: tuple[TraceTurn, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """A recorded call to a model: its whole prompt, the part that hit, its generation."""

    prompt: int
    hit: int
    gen: int


def read_trace(path: Path, *, scale: float = 1.0) -> tuple[TraceSession, ...]:
    """All sessions of a trace; lengths times `scale`, at least one token each.

    raises  Rejected naming the file, the line, what was found and what was wanted
    """
    if not 0 < scale <= 100:
        raise Rejected(f"scale is {scale}, wanted more than 0 and at most 100", field="scale")
    try:
        text = _text_of(path)
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise Rejected(f"{path}: {getattr(error, 'strerror', None) or error}", field="trace") from error
    head = text[:SNIFF_BYTES].lstrip()
    if not head:
        raise Rejected(f"{path} is empty", field="trace")
    if head.startswith("session,"):
        return _sessions(_claude_csv(path, text), scale)
    if head.startswith("{") and '"hash_id_scope"' in text[:2048]:
        return _sessions(_claude_json(path, text), scale)
    return _jsonl(path, text, scale)


def select(
    sessions: Iterable[TraceSession], *, count: int | None, turns_max: int | None, context_max: int | None
) -> tuple[TraceSession, ...]:
    """The first `count` sessions, each cut to `turns_max` turns and before its context passes `context_max` tokens."""
    chosen: list[TraceSession] = []
    for session in sessions:
        cut = _cut(session, turns_max, context_max)
        if cut.turns:
            chosen.append(cut)
        if count is not None and len(chosen) == count:
            break
    return tuple(chosen)


def _cut(session: TraceSession, turns_max: int | None, context_max: int | None) -> TraceSession:
    turns: list[TraceTurn] = []
    context = 0
    for turn in session.turns[:turns_max]:
        context = (context if turn.keep is None else min(turn.keep, context)) + turn.append + turn.gen
        if context_max is not None and context > context_max:
            break
        turns.append(turn)
    return TraceSession(session.name, tuple(turns))


def _text_of(path: Path) -> str:
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return raw.decode()


def _sessions(calls: dict[str, list[_Call]], scale: float) -> tuple[TraceSession, ...]:
    return tuple(TraceSession(name, tuple(_turns(recorded, scale))) for name, recorded in calls.items())


def _turns(calls: list[_Call], scale: float) -> Iterator[TraceTurn]:
    """Whole prompts become appends. Prompts are scaled, not appends: rounding does not add up over a session."""
    context = recorded_context = 0
    for call in calls:
        prompt, gen = max(1, round(call.prompt * scale)), max(1, round(call.gen * scale))
        if call.prompt > recorded_context and prompt > context:
            yield TraceTurn(prompt - context, gen)
            context = prompt + gen
        elif call.prompt > recorded_context:  # so short an append that scaling took it away
            yield TraceTurn(1, gen)
            context += 1 + gen
        else:
            keep = min(round(call.hit * scale), prompt - 1, context)
            yield TraceTurn(prompt - keep, gen, keep=keep)
            context = prompt + gen
        recorded_context = call.prompt + call.gen


def _claude_csv(path: Path, text: str) -> dict[str, list[_Call]]:
    """Main sessions only: sub-agents' calls interleave in one sequence that no context runs through."""
    calls: dict[str, list[_Call]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        try:
            if int(row["is_subagent"]):
                continue
            call = _Call(int(row["input_tokens"]), int(row["hit_tokens"]), int(row["output_tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _bad_line(
                path, number, error, "session, is_subagent, input_tokens, hit_tokens, output_tokens"
            ) from error
        calls.setdefault(row["session"], []).append(call)
    return calls


def _claude_json(path: Path, text: str) -> dict[str, list[_Call]]:
    try:
        session = json.loads(text)
        calls: list[_Call] = []
        seen: list[int] = []
        for request in session["requests"]:
            ids = request.get("hash_ids", [])
            hit = next((i for i, (a, b) in enumerate(zip(ids, seen, strict=False)) if a != b), min(len(ids), len(seen)))
            calls.append(_Call(int(request["in"]), hit * CLAUDE_BLOCK, int(request["out"])))
            seen = ids
    except (KeyError, TypeError, ValueError) as error:
        raise _bad_line(path, 1, error, 'a session with "requests" of "in", "out" and "hash_ids"') from error
    return {str(session.get("id", path.stem)): calls}


def _jsonl(path: Path, text: str, scale: float) -> tuple[TraceSession, ...]:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    parsed = [(number, _parsed(path, number, line)) for number, line in lines]
    if isinstance(parsed[0][1], dict) and "input_length" in parsed[0][1]:
        return _sessions(_mooncake(path, parsed), scale)
    return tuple(_simple(path, number, value, scale) for number, value in parsed)


def _mooncake(path: Path, parsed: list[tuple[int, Any]]) -> dict[str, list[_Call]]:
    """A request continues the session whose last whole block is among its own blocks."""
    calls: dict[str, list[_Call]] = {}
    open_at: dict[int, str] = {}
    for number, request in parsed:
        try:
            ids = [int(i) for i in request["hash_ids"]]
            prompt, gen = int(request["input_length"]), int(request["output_length"])
        except (KeyError, TypeError, ValueError) as error:
            raise _bad_line(path, number, error, "input_length, output_length, hash_ids") from error
        whole = ids[: prompt // MOONCAKE_BLOCK]
        found = next(((i, open_at[block]) for i, block in reversed(list(enumerate(whole))) if block in open_at), None)
        name = found[1] if found else f"line {number}"
        hit = (found[0] + 1) * MOONCAKE_BLOCK if found else 0
        calls.setdefault(name, []).append(_Call(prompt, hit, gen))
        if whole and len(whole) > 1:
            open_at[whole[-1]] = name
    return calls


def _simple(path: Path, number: int, value: Any, scale: float) -> TraceSession:
    turns = value.get("turns") if isinstance(value, dict) else value
    name = str(value.get("session", f"line {number}")) if isinstance(value, dict) else f"line {number}"
    try:
        pairs = [
            (turn["append"], turn["gen"]) if isinstance(turn, dict) else (turn[0], turn[1]) for turn in turns or ()
        ]
        return TraceSession(
            name,
            tuple(TraceTurn(max(1, round(int(a) * scale)), max(1, round(int(g) * scale))) for a, g in pairs),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _bad_line(path, number, error, '{"turns": [{"append": n, "gen": n}, ...]}') from error


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _bad_line(path, number, error, "one JSON value per line") from error


def _bad_line(path: Path, number: int, error: Exception, wanted: str) -> Rejected:
    found = f"no field {error}" if isinstance(error, KeyError) else str(error)
    return Rejected(f"{path}, line {number}: {found}; wanted {wanted}", field="trace", reason="TRACE")
