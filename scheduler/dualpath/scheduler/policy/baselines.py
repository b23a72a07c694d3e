"""What DualPath is compared with: engines round robin, and reads on the PE side only or on both sides in turn.

Same signatures as the paper's rules, so that a comparison is one switch. HBM is respected here too: overselling it
would not be a policy but a crash. Basic of the paper = round robin and PE reads only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

from dualpath.model.ids import EngineId, NodeId
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
    engines = cycle(in_rotation(snapshot.engines, snapshot.rotation))
    given = _Given()
    placements = tuple(
        given.place(turn, engine, read_queue_tokens=snapshot.read_queue_tokens.get(engine.node_id, 0))
        for turn, engine in zip(snapshot.waiting, engines, strict=False)
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
    given = _Given()
    placements: list[Placement] = []
    for turn in snapshot.waiting:
        roomy = (at for at, engine in enumerate(engines) if given.free_hbm_tokens(engine) >= turn.total_tokens_max)
        at = next(roomy, None)
        if at is None:
            return DecodeDecision(tuple(placements), StopReason.NO_HBM, len(snapshot.waiting) - len(placements), 0.0)
        placements.append(given.place(turn, engines[at], free_hbm_tokens=given.free_hbm_tokens(engines[at])))
        engines = engines[at + 1 :] + engines[: at + 1]
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
    """What this fetch has given to each engine so far, so that a placement shows the load just before it."""

    def __init__(self) -> None:
        self._turns: Counter[EngineId] = Counter()
        self._tokens: Counter[EngineId] = Counter()
        self._hbm_tokens: Counter[EngineId] = Counter()

    def free_hbm_tokens(self, engine: EngineView) -> int:
        return engine.free_hbm_tokens - self._hbm_tokens[engine.engine_id]

    def place(
        self, turn: WaitingTurn, engine: EngineView, *, read_queue_tokens: int = 0, free_hbm_tokens: int = 0
    ) -> Placement:
        placement = Placement(
            turn_id=turn.turn_id,
            engine_id=engine.engine_id,
            reason=PlacementReason.ROUND_ROBIN,
            open_tokens=engine.open_tokens + self._tokens[engine.engine_id],
            open_turns=engine.open_turns + self._turns[engine.engine_id],
            read_queue_tokens=read_queue_tokens,
            free_hbm_tokens=free_hbm_tokens,
        )
        self._turns[engine.engine_id] += 1
        self._tokens[engine.engine_id] += turn.prompt_tokens
        self._hbm_tokens[engine.engine_id] += turn.total_tokens_max
        return placement
