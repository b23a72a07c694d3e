"""How a cell lies in Redis: names of keys, change sets as flat operations of guarded.lua. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from dualpath.model.errors import Rejected
from dualpath.model.ids import BLOCK_KEY_BYTES, BlockKey
from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    CloseRecord,
    Dequeue,
    DropContext,
    DropIdempotency,
    DropTurn,
    Enqueue,
    OpenRecord,
    Operation,
    PutContext,
    PutIdempotency,
    PutPrompt,
    PutTurn,
)

CELL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # no braces: they would move the hash tag

# In the order in which guarded.lua expects them.
HEAD = ("tenure", "lease", "epoch", "writes", "changes_applied", "owner")

ARGUMENTS_MAX = 2000  # of one command: even, so that fields keep their values; a script can pass on some 8,000

Argument = bytes | str | int


class CellKeys:
    """Names of the keys of one cell. The braces keep all of them in one slot of a Redis cluster."""

    def __init__(self, cell: str) -> None:
        if not CELL_NAME.fullmatch(cell):
            raise Rejected(f"cell is {cell!r}, wanted 1 to 64 letters, digits, dots, dashes, underscores", field="cell")
        self._prefix = f"dp:{{{cell}}}:"
        self.head = tuple(self._prefix + name for name in HEAD)
        self.turns = self._prefix + "turns"
        self.prompts = self._prefix + "prompts"
        self.records = self._prefix + "records"
        self.contexts = self._prefix + "contexts"
        self.context_order = self._prefix + "context_order"
        self.idempotency = self._prefix + "idempotency"
        self.events = self._prefix + "events"
        self.lines = self._prefix + "lines"  # names of the lines ever used; `load` forgets those that are empty

    def line(self, name: str) -> str:
        return f"{self._prefix}line:{name}"


class Operations:
    """Collects operations for one call: their arguments in a flat list, and the keys they use."""

    def __init__(self, keys: CellKeys) -> None:
        self._cell = keys
        self._places: dict[str, int] = {name: place for place, name in enumerate(keys.head, start=1)}
        self.arguments: list[Argument] = []

    @property
    def keys(self) -> list[str]:
        return list(self._places)

    def add(self, command: str, key: str, *arguments: Argument) -> None:
        place = self._places.setdefault(key, len(self._places) + 1)
        self.arguments += (command, place, len(arguments), *arguments)

    def add_many(self, command: str, key: str, arguments: Sequence[Argument]) -> None:
        """One command for many members, cut where a script could not pass on so many arguments."""
        for at in range(0, len(arguments), ARGUMENTS_MAX):
            self.add(command, key, *arguments[at : at + ARGUMENTS_MAX])


def encode(changes: Iterable[ChangeSet], keys: CellKeys, *, events_max: int) -> Operations:
    """Turn change sets into the operations that apply them: for each key one command for all that is written to it."""
    written = _Written()
    for change_set in changes:
        for operation in change_set.operations:
            written.take(operation)
    operations = Operations(keys)
    written.say(operations, keys, events_max)
    return operations


class _Written:
    """The last write of each field and member; None where it is taken away."""

    def __init__(self) -> None:
        self.turns: dict[str, bytes | None] = {}
        self.prompts: dict[str, bytes | None] = {}
        self.records: dict[str, int | None] = {}
        self.contexts: dict[bytes, bytes | None] = {}
        self.idempotency: dict[str, str | None] = {}
        self.lines: dict[str, dict[str, int | None]] = {}
        self.moved: dict[bytes, None] = {}  # contexts whose old place in the order is void
        self.events: list[bytes] = []

    def take(self, operation: Operation) -> None:
        match operation:
            case PutTurn(turn_id, record):
                self.turns[turn_id] = record
            case PutPrompt(turn_id, prompt):
                self.prompts[turn_id] = prompt
            case DropTurn(turn_id):
                self.turns[turn_id] = self.prompts[turn_id] = None
            case Enqueue(line, turn_id, arrival):
                self.lines.setdefault(line, {})[turn_id] = arrival
            case Dequeue(line, turn_id):
                self.lines.setdefault(line, {})[turn_id] = None
            case OpenRecord(key, amount):
                self.records[key] = amount
            case CloseRecord(key):
                self.records[key] = None
            case PutContext(block_key, parent, tokens):
                if self.contexts.get(block_key) is None:
                    self.contexts.pop(block_key, None)  # to the end of the order
                self.contexts[block_key] = encode_context(parent, tokens)
            case DropContext(block_key):
                self.contexts[block_key] = None
                self.moved[block_key] = None
            case PutIdempotency(key, turn_id):
                self.idempotency[key] = turn_id
            case DropIdempotency(key):
                self.idempotency[key] = None
            case AddEvent(event):
                self.events.append(event)
            case _:
                assert_never(operation)

    def say(self, to: Operations, keys: CellKeys, events_max: int) -> None:
        _say_hash(to, keys.turns, self.turns)
        _say_hash(to, keys.prompts, self.prompts)
        _say_hash(to, keys.records, self.records)
        _say_hash(to, keys.idempotency, self.idempotency)
        _say_hash(to, keys.contexts, self.contexts)
        to.add_many("ZREM", keys.context_order, list(self.moved))
        for block_key, value in self.contexts.items():
            if value is not None:
                to.add("APPEND", keys.context_order, block_key)
        joined = [name for name, line in self.lines.items() if any(at is not None for at in line.values())]
        to.add_many("SADD", keys.lines, joined)
        for name, line in self.lines.items():
            to.add_many("ZREM", keys.line(name), [turn_id for turn_id, at in line.items() if at is None])
            members = [part for turn_id, at in line.items() if at is not None for part in (at, turn_id)]
            to.add_many("ZADD", keys.line(name), members)
        for event in self.events:
            # "~" trims whole nodes only: cheap, and never below events_max. `load` reads no more than that.
            to.add("XADD", keys.events, "MAXLEN", "~", events_max, "*", "e", event)


def _say_hash(to: Operations, key: str, fields: Mapping[Any, Any]) -> None:
    to.add_many("HSET", key, [part for item in fields.items() if item[1] is not None for part in item])
    to.add_many("HDEL", key, [field for field, value in fields.items() if value is None])


def encode_context(parent: BlockKey, tokens: int) -> bytes:
    return parent + b"%d" % tokens


def decode_context(value: bytes) -> tuple[BlockKey, int]:
    """Raises ValueError where the bytes are none of ours."""
    return BlockKey(value[:BLOCK_KEY_BYTES]), int(value[BLOCK_KEY_BYTES:])


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Redis answers maps as one flat list: field, value, field, value."""
    return zip(flat[::2], flat[1::2], strict=True)
