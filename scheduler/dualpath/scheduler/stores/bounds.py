"""How much a store takes at once. Both stores check the same bounds, so the simulator meets them too."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.model.errors import Broken, Rejected
from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    CloseRecord,
    Dequeue,
    DropIdempotency,
    Enqueue,
    OpenRecord,
    Operation,
    PutIdempotency,
    PutPrompt,
    PutTurn,
)

ARRIVAL_MAX = 2**53  # Redis keeps scores as doubles; above this two arrivals could become one


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """Bounds of one `apply` and of the event stream.

    There is no bound on the number of change sets: `apply` is all or none, so a long group cannot be cut in two. What
    costs time and memory is operations and bytes.
    """

    operations_per_call_max: int = 100_000  # measured: 1.2 s, in which Redis serves nobody else
    call_bytes_max: int = 64 * 1024 * 1024
    events_max: int = 10_000


def check_bounds(changes: Sequence[ChangeSet], bounds: StoreBounds) -> None:
    """Raise Rejected if the change sets exceed the bounds of one call, Broken if an arrival number cannot be kept."""
    count = sum(len(change_set.operations) for change_set in changes)
    if count > bounds.operations_per_call_max:
        raise _too_large(f"{count} operations", f"operations_per_call_max {bounds.operations_per_call_max}")
    operations = [operation for change_set in changes for operation in change_set.operations]
    size = sum(_size_bytes(operation) for operation in operations)
    if size > bounds.call_bytes_max:
        raise _too_large(f"{size} bytes", f"call_bytes_max {bounds.call_bytes_max}")
    for operation in operations:
        if isinstance(operation, Enqueue) and not 0 <= operation.arrival <= ARRIVAL_MAX:
            raise Broken(f"turn {operation.turn_id} has arrival {operation.arrival}, wanted 0 to {ARRIVAL_MAX}")


def _too_large(found: str, wanted: str) -> Rejected:
    return Rejected(
        f"one call brings {found}, {wanted}", field="changes", reason="CHANGES_TOO_LARGE", precondition=True
    )


def _size_bytes(operation: Operation) -> int:
    """What the caller chose the length of; the rest of an operation is small."""
    match operation:
        case PutTurn(record=data) | PutPrompt(prompt=data) | AddEvent(event=data):
            return len(data)
        case OpenRecord(key=name) | CloseRecord(key=name) | PutIdempotency(key=name) | DropIdempotency(key=name):
            return len(name)
        case Enqueue(line=name) | Dequeue(line=name):
            return len(name)
        case _:
            return 0
