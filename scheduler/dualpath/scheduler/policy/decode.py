"""DE scheduling (paper §6.1): phase 1 spreads the decode queue over DE groups, phase 2 places inside a group.

Phase 1 drains the whole global queue: each turn goes to the group with the least total tokens. Phase 2 takes R, the
longest prefix of the group's queue that its total free HBM holds, sets the high mark
Z = 1.05 x (sum of len over R + sum of tok_e) / |G| once per fetch, and pops the head: among the DEs with room, those
that stay at or under Z are the low class (least seq_e wins), the others the high class (least tok_e wins); none: stop.
"""

import sys
from collections.abc import Sequence

from dualpath.scheduler.policy.decisions import (
    DecodeDecision,
    GroupPlacement,
    Placement,
    PlacementReason,
    StopReason,
)
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    GroupView,
    PolicyLimits,
    WaitingTurn,
    in_rotation,
    prompt_tokens_within,
)


def spread_to_groups(
    turns: Sequence[WaitingTurn], groups: Sequence[GroupView], *, rotation: int = 0
) -> tuple[GroupPlacement, ...]:
    """Phase 1: every turn to a group, or nothing at all where there is no group."""
    if not groups:
        return ()
    order = in_rotation(groups, rotation)
    tokens = [group.open_tokens + group.queued_tokens for group in order]
    placements = []
    for turn in turns:
        least = min(tokens)  # a scan in C: for the few hundred groups of a cell no slower than a heap
        at = tokens.index(least)
        placements.append(GroupPlacement(turn.turn_id, order[at].group_id, PlacementReason.LEAST_LOADED_GROUP, least))
        tokens[at] = least + turn.prompt_tokens
    return tuple(placements)


def assign_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> DecodeDecision:
    """Phase 2: place turns of the group's queue, never beyond an engine's free HBM: a prefix of it, or with skip-ahead
    whoever fits behind turns that do not, each of which is overtaken overtakes_max times at most (FAULTS D1).

    A linear scan per turn: a group has at most 64 engines. Full ties fall to the first in the rotation.
    """
    if not snapshot.engines:
        return DecodeDecision((), StopReason.NO_ENGINES, len(snapshot.waiting), 0.0)
    engines = in_rotation(snapshot.engines, snapshot.rotation)
    open_turns = [engine.open_turns for engine in engines]
    open_tokens = [engine.open_tokens for engine in engines]
    free_hbm_tokens = [engine.free_hbm_tokens for engine in engines]
    high_mark = _high_mark(snapshot, limits)
    placements: list[Placement] = []
    skipped: list[tuple[WaitingTurn, int]] = []  # with the number of placements before it was passed over
    room = sys.maxsize  # placements until one of those skipped may be overtaken no more
    for turn in snapshot.waiting:
        prompt = turn.prompt_tokens
        needed = prompt + turn.max_new_tokens
        at, reason = _choose(open_turns, open_tokens, free_hbm_tokens, high_mark, prompt, needed)
        if at < 0:
            if len(skipped) >= limits.skip_ahead_turns:
                return _stopped(snapshot, placements, skipped, StopReason.NO_HBM, high_mark)
            skipped.append((turn, len(placements)))
            room = min(room, limits.overtakes_max - turn.overtaken)
            continue
        if skipped and room <= 0:
            return _stopped(snapshot, placements, skipped, StopReason.OVERTAKEN, high_mark)
        room -= 1
        placements.append(
            Placement(
                turn.turn_id, engines[at].engine_id, reason, open_tokens[at], open_turns[at], 0, free_hbm_tokens[at]
            )
        )
        open_turns[at] += 1
        open_tokens[at] += prompt
        free_hbm_tokens[at] -= needed
    stop = StopReason.NO_HBM if skipped else StopReason.EMPTY_QUEUE
    return _stopped(snapshot, placements, skipped, stop, high_mark)


def _stopped(
    snapshot: DecodeSnapshot,
    placements: Sequence[Placement],
    skipped: Sequence[tuple[WaitingTurn, int]],
    stop: StopReason,
    high_mark: float,
) -> DecodeDecision:
    overtaken = tuple((turn.turn_id, len(placements) - before) for turn, before in skipped if before < len(placements))
    return DecodeDecision(tuple(placements), stop, len(snapshot.waiting) - len(placements), high_mark, overtaken)


def _choose(
    open_turns: Sequence[int],
    open_tokens: Sequence[int],
    free_hbm_tokens: Sequence[int],
    high_mark: float,
    prompt_tokens: int,
    hbm_tokens: int,
) -> tuple[int, PlacementReason]:
    """The place of the DE with room that the classes prefer, in one pass, or -1; equal ones fall to the first."""
    low = high = -1
    least_turns = least_tokens = 0
    for at, free in enumerate(free_hbm_tokens):
        if free < hbm_tokens:
            continue
        turns, tokens = open_turns[at], open_tokens[at]
        if tokens + prompt_tokens <= high_mark:
            if low < 0 or turns < least_turns or (turns == least_turns and tokens < least_tokens):
                low, least_turns, least_tokens = at, turns, tokens
        elif low < 0 and (high < 0 or tokens < least_tokens or (tokens == least_tokens and turns < least_turns)):
            high, least_turns, least_tokens = at, turns, tokens
    return (high, PlacementReason.HIGH_CLASS) if low < 0 else (low, PlacementReason.LOW_CLASS)


def _high_mark(snapshot: DecodeSnapshot, limits: PolicyLimits) -> float:
    """Z, fixed for this fetch. A DE in debt (its report says less than was promised) takes nothing from the others."""
    free = total = 0
    for engine in snapshot.engines:
        if engine.free_hbm_tokens > 0:
            free += engine.free_hbm_tokens
        total += engine.open_tokens
    total += prompt_tokens_within(snapshot.waiting, free)
    return limits.high_mark_factor * total / len(snapshot.engines)
