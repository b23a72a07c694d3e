"""DE scheduling (paper §6.1): phase 1 spreads the decode queue over DE groups, phase 2 places inside a group.

Phase 1 drains the whole global queue: each turn goes to the group with the least total tokens. Phase 2 takes R, the
longest prefix of the group's queue that its total free HBM holds, sets the high mark
Z = 1.05 x (sum of len over R + sum of tok_e) / |G| once per fetch, and pops the head: among the DEs with room, those
that stay at or under Z are the low class (least seq_e wins), the others the high class (least tok_e wins); none: stop.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.scheduler.policy.decisions import (
    DecodeDecision,
    GroupPlacement,
    Placement,
    PlacementReason,
    StopReason,
)
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    WaitingTurn,
    in_rotation,
)


def spread_to_groups(
    turns: Sequence[WaitingTurn], groups: Sequence[GroupView], *, rotation: int = 0
) -> tuple[GroupPlacement, ...]:
    """Phase 1: every turn to a group, or nothing at all where there is no group."""
    if not groups:
        return ()
    heap = [
        (group.open_tokens + group.queued_tokens, place, group.group_id)
        for place, group in enumerate(in_rotation(groups, rotation))
    ]
    heapq.heapify(heap)
    placements = []
    for turn in turns:
        tokens, place, group_id = heap[0]
        placements.append(GroupPlacement(turn.turn_id, group_id, PlacementReason.LEAST_LOADED_GROUP, tokens))
        heapq.heapreplace(heap, (tokens + turn.prompt_tokens, place, group_id))
    return tuple(placements)


@dataclass(slots=True)
class _Load:
    """An engine's numbers as they change within one fetch."""

    engine: EngineView
    open_turns: int
    open_tokens: int
    free_hbm_tokens: int


def assign_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> DecodeDecision:
    """Phase 2: place a prefix of the group's queue, never beyond an engine's free HBM.

    A linear scan per turn: a group has at most 64 engines. Full ties fall to the first in the rotation.
    """
    if not snapshot.engines:
        return DecodeDecision((), StopReason.NO_ENGINES, len(snapshot.waiting), 0.0)
    loads = [
        _Load(engine, engine.open_turns, engine.open_tokens, engine.free_hbm_tokens)
        for engine in in_rotation(snapshot.engines, snapshot.rotation)
    ]
    high_mark = _high_mark(snapshot, limits)
    placements: list[Placement] = []
    for turn in snapshot.waiting:
        prompt = turn.prompt_tokens
        needed = prompt + turn.max_new_tokens
        chosen, reason = _choose(loads, high_mark, prompt, needed)
        if chosen is None:
            waiting = len(snapshot.waiting) - len(placements)
            return DecodeDecision(tuple(placements), StopReason.NO_HBM, waiting, high_mark)
        placements.append(
            Placement(
                turn.turn_id,
                chosen.engine.engine_id,
                reason,
                chosen.open_tokens,
                chosen.open_turns,
                free_hbm_tokens=chosen.free_hbm_tokens,
            )
        )
        chosen.open_turns += 1
        chosen.open_tokens += prompt
        chosen.free_hbm_tokens -= needed
    return DecodeDecision(tuple(placements), StopReason.EMPTY_QUEUE, 0, high_mark)


def _choose(
    loads: Sequence[_Load], high_mark: float, prompt_tokens: int, hbm_tokens: int
) -> tuple[_Load | None, PlacementReason]:
    """The DE with room that the classes prefer, in one pass; equal ones fall to the first."""
    low: _Load | None = None
    high: _Load | None = None
    for load in loads:
        if load.free_hbm_tokens < hbm_tokens:
            continue
        open_turns, open_tokens = load.open_turns, load.open_tokens
        if open_tokens + prompt_tokens <= high_mark:
            if (
                low is None
                or open_turns < low.open_turns
                or (open_turns == low.open_turns and open_tokens < low.open_tokens)
            ):
                low = load
        elif low is None and (
            high is None
            or open_tokens < high.open_tokens
            or (open_tokens == high.open_tokens and open_turns < high.open_turns)
        ):
            high = load
    return (high, PlacementReason.HIGH_CLASS) if low is None else (low, PlacementReason.LOW_CLASS)


def _high_mark(snapshot: DecodeSnapshot, limits: PolicyLimits) -> float:
    """Z, fixed for this fetch. A DE in debt (its report says less than was promised) takes nothing from the others."""
    free = total = 0
    for engine in snapshot.engines:
        free += max(engine.free_hbm_tokens, 0)
        total += engine.open_tokens
    for turn in snapshot.waiting:
        prompt = turn.prompt_tokens
        free -= prompt + turn.max_new_tokens
        if free < 0:
            break
        total += prompt
    return limits.high_mark_factor * total / len(snapshot.engines)
