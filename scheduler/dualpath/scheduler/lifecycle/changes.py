"""Change sets: the writes of one step, applied whole or not at all.

A change set says what becomes true, in terms of this project, never in terms of Redis. Each operation is idempotent, so
applying a change set again changes nothing. The stores turn operations into their own writes; no rule lives there.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dualpath.model.ids import BlockKey, TurnId


class PutTurn(NamedTuple):
    """Write a turn's record (opaque bytes, see lifecycle/records.py) in place of the one before."""

    turn_id: TurnId
    record: bytes


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
    """One line of the event stream (opaque bytes); the stream keeps the newest `events_max`."""

    event: bytes


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
