"""How a cell lies in Redis: names of keys, change sets as flat operations of guarded.lua. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import assert_never

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
    PutTurn,
)

CELL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")  # no braces: they would move the hash tag

# In the order in which guarded.lua expects them.
HEAD = ("tenure", "lease", "epoch", "writes", "changes_applied", "owner")

Argument = bytes | str | int


class CellKeys:
    """Names of the keys of one cell. The braces keep all of them in one slot of a Redis cluster."""

    def __init__(self, cell: str) -> None:
        if not CELL_NAME.fullmatch(cell):
            raise Rejected(f"cell is {cell!r}, wanted 1 to 64 letters, digits, dots, dashes, underscores", field="cell")
        self._prefix = f"dp:{{{cell}}}:"
        self.head = tuple(self._prefix + name for name in HEAD)
        self.turns = self._prefix + "turns"
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


def encode(changes: Iterable[ChangeSet], keys: CellKeys, *, events_max: int) -> Operations:
    """Turn change sets into the operations that apply them, in order."""
    operations = Operations(keys)
    for change_set in changes:
        for operation in change_set.operations:
            _encode(operation, operations, keys, events_max)
    return operations


def _encode(operation: Operation, to: Operations, keys: CellKeys, events_max: int) -> None:
    match operation:
        case PutTurn(turn_id, record):
            to.add("HSET", keys.turns, turn_id, record)
        case DropTurn(turn_id):
            to.add("HDEL", keys.turns, turn_id)
        case Enqueue(line, turn_id, arrival):
            to.add("SADD", keys.lines, line)
            to.add("ZADD", keys.line(line), arrival, turn_id)
        case Dequeue(line, turn_id):
            to.add("ZREM", keys.line(line), turn_id)
        case OpenRecord(key, amount):
            to.add("HSET", keys.records, key, amount)
        case CloseRecord(key):
            to.add("HDEL", keys.records, key)
        case PutContext(block_key, parent, tokens):
            to.add("HSET", keys.contexts, block_key, encode_context(parent, tokens))
            to.add("APPEND", keys.context_order, block_key)
        case DropContext(block_key):
            to.add("HDEL", keys.contexts, block_key)
            to.add("ZREM", keys.context_order, block_key)
        case PutIdempotency(key, turn_id):
            to.add("HSET", keys.idempotency, key, turn_id)
        case DropIdempotency(key):
            to.add("HDEL", keys.idempotency, key)
        case AddEvent(event):
            # "~" trims whole nodes only: cheap, and never below events_max. `load` reads no more than that.
            to.add("XADD", keys.events, "MAXLEN", "~", events_max, "*", "e", event)
        case _:
            assert_never(operation)


def encode_context(parent: BlockKey, tokens: int) -> bytes:
    return parent + b"%d" % tokens


def decode_context(value: bytes) -> tuple[BlockKey, int]:
    """Raises ValueError where the bytes are none of ours."""
    return BlockKey(value[:BLOCK_KEY_BYTES]), int(value[BLOCK_KEY_BYTES:])


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Redis answers maps as one flat list: field, value, field, value."""
    return zip(flat[::2], flat[1::2], strict=True)
