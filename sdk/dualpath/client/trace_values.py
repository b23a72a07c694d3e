"""Values of a recorded trace: bounds, checks, and errors that say what was found and what was wanted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualpath.model.errors import Rejected

# Bounds tell a damaged value from a large one: the longest published prompt has 0.9 million tokens, the longest pause
# takes 22 hours.
TOKENS_MAX = 10_000_000
TURN_NUMBER_MAX = 10_000_000
PAUSE_S_MAX = 30 * 86_400
INSTANT_S_MAX = 10_000_000_000  # wide enough for seconds since 1970
HASH_ID_MAX = (1 << 64) - 1
FOUND_CHARS_MAX = 40


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call to a model: its whole prompt, its generation, the part of the prompt that hit (None: unknown).

    append  what the turn appends, where the trace says that instead of the whole prompt
    """

    prompt: int
    gen: int
    hit: int | None
    pause_s: float
    append: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """The calls of one session as they were recorded."""

    name: str
    start_s: float
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class When:
    """Times of one call as far as they are recorded: its submission, the pause before it, how long it took."""

    at_s: float | None
    pause_s: float | None = None
    call_s: float | None = None


class BadValue(Exception):
    """What was found and what was wanted; the reader of the format knows the line.

    line  where in its text a JSON value breaks off
    """

    def __init__(self, found: str, wanted: str, *, line: int = 1) -> None:
        super().__init__(found, wanted)
        self.found = found
        self.wanted = wanted
        self.line = line


def bad_line(path: Path, line: int, bad: BadValue) -> Rejected:
    return Rejected(f"{path}, line {line}: {bad.found}; wanted {bad.wanted}", field="trace", reason="TRACE")


def pause_before_s(field: str, before: When | None, now: When) -> float:
    """The recorded pause; else the time since the previous submission less that call, where known: an upper bound."""
    if before is None:
        return 0.0
    since_s = 0.0
    if now.at_s is not None and before.at_s is not None:
        since_s = now.at_s - before.at_s
        if since_s < 0:
            raise BadValue(f"{field} is at {now.at_s} s", f"no less than {before.at_s} s, the session's previous turn")
    pause_s = max(0.0, since_s - (before.call_s or 0.0)) if now.pause_s is None else now.pause_s
    if pause_s > PAUSE_S_MAX:
        raise BadValue(f"{field} is {pause_s} s after the session's previous turn", f"at most {PAUSE_S_MAX} s")
    return pause_s


def parsed_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        wanted = "one JSON value per line"
        raise BadValue(f"{error.msg} at column {error.colno}", wanted, line=error.lineno) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise BadValue(str(error), "one JSON value per line") from error


def member(value: Any, name: str, at: str = "") -> Any:
    """A field that must be there; `at` names the value it belongs to, "" the whole line."""
    if not isinstance(value, dict):
        raise BadValue(f"{at or 'the line'} is {shown(value)}", f"an object with {name}")
    if name not in value:
        raise BadValue(f"no field '{name}'" + (f" in {at}" if at else ""), f"an object with {name}")
    return value[name]


def listed(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadValue(f"{field} is {shown(value)}", "a list")
    return value


def named(field: str, value: Any) -> str:
    if type(value) not in (str, int) or value == "":
        raise BadValue(f"{field} is {shown(value)}", "a name")
    return str(value)


def hash_ids(field: str, value: Any, *, prompt: int, block: int) -> list[int]:
    """Ids of the blocks of a prompt; a last block may be there that is not full."""
    ids = listed(field, value)
    blocks_max = -(-prompt // block)
    if len(ids) > blocks_max:
        raise BadValue(f"{field} has {len(ids)} blocks of {block}", f"at most {blocks_max} for {prompt} tokens")
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > HASH_ID_MAX:
        return [whole(f"{field}[{index}]", one, HASH_ID_MAX) for index, one in enumerate(ids)]
    return ids


def cell_whole(field: str, text: str, high: int) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise BadValue(_no_number(field, text), f"a whole number from 0 to {high}") from error
    return whole(field, number, high)


def cell_seconds(field: str, text: str, high: int) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise BadValue(_no_number(field, text), f"a number from 0 to {high}") from error
    return seconds(field, number, high)


def _no_number(field: str, text: str) -> str:
    return f"invalid literal {shown(text)} for {field}" if text.strip() else f"{field} is empty"


def whole(field: str, value: Any, high: int) -> int:
    number = int(value) if type(value) is float and value.is_integer() else value  # some writers of JSON put 5.0
    if type(number) is not int or not 0 <= number <= high:  # a bool is no number here
        raise BadValue(f"{field} is {shown(value)}", f"a whole number from 0 to {high}")
    return number


def seconds(field: str, value: Any, high: int) -> float:
    if type(value) not in (int, float) or not 0 <= value <= high:  # NaN is in no range
        raise BadValue(f"{field} is {shown(value)}", f"a number from 0 to {high}")
    return float(value)


def shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= FOUND_CHARS_MAX else f"{text[:FOUND_CHARS_MAX]}..."
