"""What DualPath is compared with: engines round robin, and reads on the PE side only or on both sides in turn.

Same signatures as the paper's rules, so that a comparison is one switch. HBM is respected here too: overselling it
would not be a policy but a crash. Basic of the paper = round robin and PE reads only.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

from dualpath.model.ids import NodeId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import (
    DecodeDecision,
    GroupPlacement,
    Placement,
    PlacementReason,
    PrefillDecision,
    ReadReason,
    ReadSideDecision,
    StopReason,
)
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
    in_rotation,
)


def round_robin_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
    """Turns to PEs one after the other, whatever their load."""
    if not snapshot.engines:
        return PrefillDecision((), StopReason.NO_ENGINES, len(snapshot.waiting))
    engines = in_rotation(snapshot.engines, snapshot.rotation)
    given = _Given(engines)
    placements = tuple(
        given.place(turn, at, snapshot.read_queue_tokens.get(engines[at].node_id, 0))
        for turn, at in zip(snapshot.waiting, cycle(range(len(engines))), strict=False)
    )
    return PrefillDecision(placements, StopReason.EMPTY_QUEUE, 0)


def round_robin_groups(
    turns: Sequence[WaitingTurn], groups: Sequence[GroupView], *, rotation: int = 0
) -> tuple[GroupPlacement, ...]:
    """Turns to DE groups one after the other."""
    tokens = {group.group_id: group.open_tokens + group.queued_tokens for group in groups}
    placements: list[GroupPlacement] = []
    for turn, group in zip(turns, cycle(in_rotation(groups, rotation)), strict=False):
        group_id = group.group_id
        placements.append(GroupPlacement(turn.turn_id, group_id, PlacementReason.ROUND_ROBIN, tokens[group_id]))
        tokens[group_id] += turn.prompt_tokens
    return tuple(placements)


def round_robin_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> DecodeDecision:
    """Turns to DEs one after the other, skipping those without the HBM."""
    if not snapshot.engines:
        return DecodeDecision((), StopReason.NO_ENGINES, len(snapshot.waiting), 0.0)
    engines = in_rotation(snapshot.engines, snapshot.rotation)
    given = _Given(engines)
    free_hbm_tokens = given.free_hbm_tokens
    placements: list[Placement] = []
    next_up = list(range(len(engines)))
    for turn in snapshot.waiting:
        needed = turn.prompt_tokens + turn.max_new_tokens
        place = next((place for place, at in enumerate(next_up) if free_hbm_tokens[at] >= needed), None)
        if place is None:
            return DecodeDecision(tuple(placements), StopReason.NO_HBM, len(snapshot.waiting) - len(placements), 0.0)
        placements.append(given.place(turn, next_up[place]))
        next_up = next_up[place + 1 :] + next_up[: place + 1]
    return DecodeDecision(tuple(placements), StopReason.EMPTY_QUEUE, 0, 0.0)


def read_on_pe_side(
    pe_node: NodeId,
    de_node: NodeId,
    read_queue_tokens: Mapping[NodeId, int],
    *,
    hit_tokens: int,
    rotation: int = 0,
) -> ReadSideDecision:
    """Only prefill nodes read: what other disaggregated systems do."""
    reason = ReadReason.PE_ONLY if hit_tokens else ReadReason.NO_HITS
    return ReadSideDecision(ReadSide.PE, reason, read_queue_tokens.get(pe_node, 0), read_queue_tokens.get(de_node, 0))


def read_alternating(
    pe_node: NodeId,
    de_node: NodeId,
    read_queue_tokens: Mapping[NodeId, int],
    *,
    hit_tokens: int,
    rotation: int = 0,
) -> ReadSideDecision:
    """Both paths in turn without looking at the queues (the paper's ablation "+ dual path")."""
    reason = ReadReason.ALTERNATING if hit_tokens else ReadReason.NO_HITS
    side = (ReadSide.PE, ReadSide.DE)[rotation % 2] if hit_tokens else ReadSide.PE
    return ReadSideDecision(side, reason, read_queue_tokens.get(pe_node, 0), read_queue_tokens.get(de_node, 0))


class _Given:
    """Loads with what this fetch has given to each engine so far, so that a placement shows the load just before it."""

    __slots__ = ("engines", "free_hbm_tokens", "open_tokens", "open_turns")

    def __init__(self, engines: Sequence[EngineView]) -> None:
        self.engines = engines
        self.open_turns = [engine.open_turns for engine in engines]
        self.open_tokens = [engine.open_tokens for engine in engines]
        self.free_hbm_tokens = [engine.free_hbm_tokens for engine in engines]

    def place(self, turn: WaitingTurn, at: int, read_queue_tokens: int = 0) -> Placement:
        placement = Placement(
            turn.turn_id,
            self.engines[at].engine_id,
            PlacementReason.ROUND_ROBIN,
            self.open_tokens[at],
            self.open_turns[at],
            read_queue_tokens,
            self.free_hbm_tokens[at],
        )
        self.open_turns[at] += 1
        self.open_tokens[at] += turn.prompt_tokens
        self.free_hbm_tokens[at] -= turn.total_tokens_max
        return placement
