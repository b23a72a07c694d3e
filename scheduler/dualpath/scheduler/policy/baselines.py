"""What DualPath is compared with: engines round robin, and reads on the PE side only or on both sides in turn.

Same signatures as the paper's rules, so that a comparison is one switch. HBM is respected here too: overselling it would
not be a policy but a crash. Basic of the paper = round robin and PE reads only.
"""

from collections.abc import Mapping, Sequence

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
)


def round_robin_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
    """Turns to PEs one after the other, whatever their load."""
    engines = _in_rotation(snapshot.engines, snapshot.rotation)
    if not engines:
        return PrefillDecision((), StopReason.NO_ENGINES, len(snapshot.waiting))
    placements = tuple(
        Placement(
            turn_id=turn.turn_id,
            engine_id=engines[i % len(engines)].engine_id,
            reason=PlacementReason.ROUND_ROBIN,
            open_tokens=engines[i % len(engines)].open_tokens,
            open_turns=engines[i % len(engines)].open_turns,
        )
        for i, turn in enumerate(snapshot.waiting)
    )
    return PrefillDecision(placements, StopReason.EMPTY_QUEUE, 0)


def round_robin_groups(
    turns: Sequence[WaitingTurn], groups: Sequence[GroupView], *, rotation: int = 0
) -> tuple[GroupPlacement, ...]:
    """Turns to DE groups one after the other."""
    order = sorted(groups, key=lambda group: (group.rank - rotation) % len(groups))
    return tuple(
        GroupPlacement(
            turn.turn_id,
            order[i % len(order)].group_id,
            PlacementReason.ROUND_ROBIN,
            order[i % len(order)].open_tokens + order[i % len(order)].queued_tokens,
        )
        for i, turn in enumerate(turns if order else ())
    )


def round_robin_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> DecodeDecision:
    """Turns to DEs one after the other, skipping those without the HBM."""
    engines = _in_rotation(snapshot.engines, snapshot.rotation)
    if not engines:
        return DecodeDecision((), StopReason.NO_ENGINES, len(snapshot.waiting), 0.0)
    free = {engine.engine_id: engine.free_hbm_tokens for engine in engines}
    placements: list[Placement] = []
    at = 0
    for turn in snapshot.waiting:
        for step in range(len(engines)):
            engine = engines[(at + step) % len(engines)]
            if free[engine.engine_id] >= turn.total_tokens_max:
                break
        else:
            return DecodeDecision(tuple(placements), StopReason.NO_HBM, len(snapshot.waiting) - len(placements), 0.0)
        placements.append(
            Placement(
                turn_id=turn.turn_id,
                engine_id=engine.engine_id,
                reason=PlacementReason.ROUND_ROBIN,
                open_tokens=engine.open_tokens,
                open_turns=engine.open_turns,
                free_hbm_tokens=free[engine.engine_id],
            )
        )
        free[engine.engine_id] -= turn.total_tokens_max
        at = engines.index(engine) + 1
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


def _in_rotation(engines: Sequence[EngineView], rotation: int) -> list[EngineView]:
    return sorted(engines, key=lambda engine: (engine.rank - rotation) % len(engines))
