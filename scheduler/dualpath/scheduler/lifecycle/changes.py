"""Change sets: the writes of one step, applied whole or not at all.

A change set says what becomes true, in terms of this project, never in terms of Redis. Each operation is idempotent, so
applying a change set again changes nothing. The stores turn operations into their own writes; no rule lives there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dualpath.model.ids import BlockKey, TurnId


class Recorded(Protocol):
    def encode(self) -> bytes: ...


class PutTurn(NamedTuple):
    """Write a turn's record (opaque bytes, see lifecycle/records.py) in place of the one before.

    source  the bytes, or what gives them: a record is encoded when it is written, not for each step on the way there
    """

    turn_id: TurnId
    source: bytes | Recorded

    @property
    def record(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.encode()


class PutPrompt(NamedTuple):
    """Write a turn's prompt: what never changes, and most of its bytes."""

    turn_id: TurnId
    prompt: bytes


class DropTurn(NamedTuple):
    """Forget a turn's record and its prompt."""

    turn_id: TurnId


class Enqueue(NamedTuple):
    """Put a turn into a line at its arrival number: a returned turn goes back to its old place (I4)."""

    line: str  # "prefill_fifo", "decode_queue" or "group_queue:{group_id}"
    turn_id: TurnId
    arrival: int


class Dequeue(NamedTuple):
    line: str
    turn_id: TurnId


class OpenRecord(NamedTuple):
    """Reserve `amount` of a resource for one attempt; the key is "{turn_id}:{attempt}:{resource}:{holder}"."""

    key: str
    amount: int


class CloseRecord(NamedTuple):
    key: str


class PutContext(NamedTuple):
    """A committed full block: its key, its parent in the chain, and the tokens up to its end."""

    key: BlockKey
    parent: BlockKey
    tokens: int


class DropContext(NamedTuple):
    key: BlockKey


class PutIdempotency(NamedTuple):
    key: str
    turn_id: TurnId


class DropIdempotency(NamedTuple):
    key: str


class AddEvent(NamedTuple):
    """One line of the event stream (opaque bytes); the stream keeps the newest `events_max`.

    source  the bytes, or what gives them when they are written
    """

    source: bytes | Callable[[], bytes]

    @property
    def event(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source()


Operation = (
    PutTurn
    | PutPrompt
    | DropTurn
    | Enqueue
    | Dequeue
    | OpenRecord
    | CloseRecord
    | PutContext
    | DropContext
    | PutIdempotency
    | DropIdempotency
    | AddEvent
)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What one step changes. Empty is legal and writes nothing."""

    operations: tuple[Operation, ...] = ()

    def __add__(self, other: "ChangeSet") -> "ChangeSet":
        return ChangeSet(self.operations + other.operations)

    def __bool__(self) -> bool:
        return bool(self.operations)


class NetChange:
    """What some steps of one turn come to together: of several writes of one thing only the last one counts.

    A thing that was made and is gone again within these steps was never stored, so it needs no write at all.
    """

    __slots__ = ("_events", "_made", "_operations")

    def __init__(self) -> None:
        self._operations: dict[object, Operation] = {}
        self._made: set[object] = set()
        self._events: list[AddEvent] = []

    def add(self, changes: ChangeSet) -> None:
        operations, made = self._operations, self._made
        for operation in changes.operations:
            match operation:
                case AddEvent():
                    self._events.append(operation)
                    continue
                case PutTurn():
                    operations[PutTurn] = operation
                    continue
                case DropTurn():
                    operations.pop(PutPrompt, None)
                    operations[PutTurn] = operation
                    continue
                case PutPrompt():
                    operations[PutPrompt] = operation
                    continue
            name = (_THINGS[type(operation)], operation[0])  # operations name their thing first
            if type(operation) in _MAKE:
                if name not in operations:
                    made.add(name)
            elif name in made:
                made.discard(name)
                del operations[name]
                continue
            operations.pop(name, None)  # the last write of a context is its place in their order
            operations[name] = operation

    def as_written(self) -> ChangeSet:
        """The operations, with every record and event encoded as it is now."""
        operations = [
            PutTurn(operation.turn_id, operation.record) if isinstance(operation, PutTurn) else operation
            for operation in self._operations.values()
        ]
        return ChangeSet((*operations, *(AddEvent(event.event) for event in self._events)))


_MAKE = frozenset({Enqueue, OpenRecord, PutContext, PutIdempotency})
_THINGS = {
    Enqueue: "line",
    Dequeue: "line",
    OpenRecord: "record",
    CloseRecord: "record",
    PutContext: "context",
    DropContext: "context",
    PutIdempotency: "idempotency",
    DropIdempotency: "idempotency",
}


@dataclass(frozen=True, slots=True)
class StoredCell:
    """All that a store holds of one cell, as plain values: what a scheduler rebuilds itself from.

    lines      line name -> (arrival, turn id) in order
    records    open ledger records, key -> amount
    contexts   block key -> (parent, tokens up to its end), oldest first
    """

    turns: dict[TurnId, bytes]
    prompts: dict[TurnId, bytes]
    lines: dict[str, tuple[tuple[int, TurnId], ...]]
    records: dict[str, int]
    contexts: dict[BlockKey, tuple[BlockKey, int]]
    idempotency: dict[str, TurnId]
    events: tuple[bytes, ...] = ()
    changes_applied: int = 0  # rises by one per change set ever applied; a smaller number than known means lost writes
