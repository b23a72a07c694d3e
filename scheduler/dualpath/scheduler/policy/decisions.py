"""What a policy answers: placements and stops, each with a reason of a closed enum, and the sentence that says it.

What is made for every turn is a NamedTuple: a third of the cost of a frozen dataclass.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dualpath.model.ids import EngineId, GroupId, TurnId
from dualpath.model.turn import ReadSide


class PlacementReason(StrEnum):
    SHORT_QUEUE = "short_queue"  # PE of class C2
    LONG_QUEUE = "long_queue"  # PE of class C3: no C2 engine was left
    LEAST_LOADED_GROUP = "least_loaded_group"  # DE phase 1
    LOW_CLASS = "low_class"  # DE phase 2, under the high mark
    HIGH_CLASS = "high_class"  # DE phase 2, every DE with room is over the high mark
    ROUND_ROBIN = "round_robin"


class StopReason(StrEnum):
    EMPTY_QUEUE = "empty_queue"
    ALL_OVERLOADED = "all_overloaded"  # every PE is over beta
    NO_HBM = "no_hbm"  # no DE can hold the head
    OVERTAKEN = "overtaken"  # no DE can hold a turn that has been passed over often enough
    NO_ENGINES = "no_engines"


class ReadReason(StrEnum):
    SHORTER_QUEUE = "shorter_queue"
    EQUAL_QUEUES = "equal_queues"
    NO_HITS = "no_hits"
    PE_ONLY = "pe_only"
    ALTERNATING = "alternating"


class Placement(NamedTuple):
    """A turn to an engine. The numbers are what the decision saw just before it was taken."""

    turn_id: TurnId
    engine_id: EngineId
    reason: PlacementReason
    open_tokens: int
    open_turns: int
    read_queue_tokens: int = 0
    free_hbm_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PrefillDecision:
    """`waiting` turns were left in the FIFO because of `stop`."""

    placements: tuple[Placement, ...]
    stop: StopReason
    waiting: int


class GroupPlacement(NamedTuple):
    """A turn to a DE group's own queue (DE phase 1)."""

    turn_id: TurnId
    group_id: GroupId
    reason: PlacementReason
    group_tokens: int


@dataclass(frozen=True, slots=True)
class DecodeDecision:
    """`waiting` turns were left because of `stop`; `overtaken` are those passed over (skip-ahead), and how often."""

    placements: tuple[Placement, ...]
    stop: StopReason
    waiting: int
    high_mark_tokens: float
    overtaken: tuple[tuple[TurnId, int], ...] = ()


class ReadSideDecision(NamedTuple):
    side: ReadSide
    reason: ReadReason
    pe_queue_tokens: int
    de_queue_tokens: int


_SENTENCES: dict[PlacementReason | StopReason | ReadReason, str] = {
    PlacementReason.SHORT_QUEUE: "least open tokens among the PEs whose node has a short read queue",
    PlacementReason.LONG_QUEUE: "no PE under beta had a short read queue; least open tokens among the others",
    PlacementReason.LEAST_LOADED_GROUP: "the DE group with the least tokens, its waiting turns included",
    PlacementReason.LOW_CLASS: "least open turns among the DEs with room that stay under the high mark",
    PlacementReason.HIGH_CLASS: "every DE with room would pass the high mark; least open tokens among them",
    PlacementReason.ROUND_ROBIN: "next engine in turn",
    StopReason.EMPTY_QUEUE: "the line is empty",
    StopReason.ALL_OVERLOADED: "every PE of the group has more open tokens than beta",
    StopReason.NO_HBM: "no DE of the group has the HBM for the turn at the head",
    StopReason.OVERTAKEN: "no DE of the group has the HBM for a turn that may be overtaken no more",
    StopReason.NO_ENGINES: "the group has no engines",
    ReadReason.SHORTER_QUEUE: "the node of this side has the shorter read queue",
    ReadReason.EQUAL_QUEUES: "both read queues are equally long; sides take turns",
    ReadReason.NO_HITS: "nothing has to be read",
    ReadReason.PE_ONLY: "this policy reads on the PE side only",
    ReadReason.ALTERNATING: "this policy lets the sides take turns",
}


def describe(reason: PlacementReason | StopReason | ReadReason) -> str:
    """One sentence that says a reason to a person."""
    return _SENTENCES[reason]
