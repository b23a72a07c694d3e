"""The life of a turn as a table: state x event -> state. What is not in it is a broken law, not a case to handle.

A turn stands in one line at a time (DESIGN "one line at a time"); a lost attempt goes back to the prefill FIFO, to its
old place by arrival number.
"""

from enum import StrEnum

from dualpath.model.errors import Broken
from dualpath.model.turn import TurnState


class Event(StrEnum):
    """What can happen to a turn."""

    PE_ASSIGNED = "pe_assigned"
    GROUP_CHOSEN = "group_chosen"
    GROUP_LEFT = "group_left"  # the DE group is gone: back to the global decode queue
    PLANNED = "planned"  # DE and read side chosen, plan about to be sent
    READING = "reading"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    COMMITTED = "committed"
    RETURNED = "returned"  # the attempt is lost or handed back
    FAILED = "failed"
    CANCELLED = "cancelled"


S, E = TurnState, Event

_RUNNING = (S.PLANNED, S.READING, S.PREFILLING, S.DECODING)
_OPEN = (S.PREFILL_FIFO, S.DECODE_QUEUE, S.GROUP_QUEUE, *_RUNNING)

TABLE: dict[tuple[TurnState, Event], TurnState] = {
    (S.PREFILL_FIFO, E.PE_ASSIGNED): S.DECODE_QUEUE,
    (S.DECODE_QUEUE, E.GROUP_CHOSEN): S.GROUP_QUEUE,
    (S.GROUP_QUEUE, E.GROUP_LEFT): S.DECODE_QUEUE,
    (S.GROUP_QUEUE, E.PLANNED): S.PLANNED,
    # the two groups report on their own streams, so their news may overtake each other
    **{(state, E.READING): S.READING for state in (S.PLANNED, S.READING)},
    **{(state, E.READING): state for state in (S.PREFILLING, S.DECODING)},
    **{(state, E.PREFILLING): S.PREFILLING for state in (S.PLANNED, S.READING, S.PREFILLING)},
    (S.DECODING, E.PREFILLING): S.DECODING,
    **{(state, E.DECODING): S.DECODING for state in _RUNNING},
    **{(state, E.COMMITTED): S.COMMITTED for state in _RUNNING},
    **{(state, E.RETURNED): S.PREFILL_FIFO for state in (S.DECODE_QUEUE, S.GROUP_QUEUE, *_RUNNING)},
    **{(state, E.FAILED): S.FAILED for state in _OPEN},
    **{(state, E.CANCELLED): S.CANCELLED for state in _OPEN},
}


def next_state(state: TurnState, event: Event) -> TurnState:
    """raises Broken where the event cannot happen in this state"""
    try:
        return TABLE[state, event]
    except KeyError as error:
        raise Broken(f"event {event} cannot happen to a turn in state {state}", reason="TABLE") from error
