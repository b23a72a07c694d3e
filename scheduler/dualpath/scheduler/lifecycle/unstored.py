"""What of a turn is not in the store yet, as one change set: however many steps lie between, only where it stands now
counts. A turn that was accepted, placed and planned since the last write never stood in a line for the store.
"""

from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    CloseRecord,
    Dequeue,
    Enqueue,
    OpenRecord,
    Operation,
    PutIdempotency,
    PutPrompt,
    PutTurn,
)
from dualpath.scheduler.lifecycle.records import TurnEntry, encode_prompt


def unstored(entry: TurnEntry, line: str | None) -> ChangeSet:
    """The difference between the entry and what was stored of it last; from then on that counts as stored.

    line  name of the line in which the turn stands
    """
    turn, turn_id = entry.turn, entry.turn.turn_id
    operations: list[Operation] = []
    if not entry.is_stored:
        entry.is_stored = True
        operations.append(PutPrompt(turn_id, encode_prompt(turn)))
        if turn.idempotency_key:
            operations.append(PutIdempotency(turn.idempotency_key, turn_id))
    if line != entry.stored_line:
        if entry.stored_line is not None:
            operations.append(Dequeue(entry.stored_line, turn_id))
        if line is not None:
            operations.append(Enqueue(line, turn_id, turn.arrival))
        entry.stored_line = line
    held, stored = entry.held, entry.stored_held
    if held != stored:
        operations += [CloseRecord(old.key) for resource, old in stored.items() if held.get(resource) != old]
        operations += [OpenRecord(new.key, new.amount) for resource, new in held.items() if stored.get(resource) != new]
        entry.stored_held = held.copy()
    if entry.notes_made != entry.notes_stored:  # every step that a record must know of leaves a note
        entry.notes_stored = entry.notes_made
        header = entry.header()
        operations.append(PutTurn(turn_id, entry.encode(header)))
        if entry.state.is_terminal:
            operations.append(AddEvent(header))
            entry.put_away()
    return ChangeSet(tuple(operations))


def count_as_stored(entry: TurnEntry, line: str | None) -> None:
    """The entry came from the store as it is."""
    entry.is_stored, entry.stored_line, entry.stored_held = True, line, entry.held.copy()
    entry.notes_stored = entry.notes_made
    if entry.state.is_terminal:
        entry.put_away()
