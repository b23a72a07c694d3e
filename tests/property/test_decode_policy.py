"""Laws of DE scheduling, over whole random snapshots."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId
from dualpath.scheduler.policy.decisions import PlacementReason, StopReason
from dualpath.scheduler.policy.decode import assign_decode, spread_to_groups
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, EngineView, GroupView, PolicyLimits, WaitingTurn
from naive_policy import naive_decode, naive_high_mark
from strategies import decode_snapshots, examples, group_views, policy_limits, rotations, waiting_turns

against_the_oracle = examples(2)
laws = examples(0.5)
few = examples(0.1)  # one number is drawn


# ---- phase 2: inside a group


@against_the_oracle
@given(decode_snapshots(), policy_limits())
def test_the_answer_is_that_of_the_rules_read_literally(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    decision = assign_decode(snapshot, limits)

    assert [(p.turn_id, p.engine_id) for p in decision.placements] == naive_decode(snapshot, limits)


@laws
@given(decode_snapshots(engines_min=1), policy_limits())
def test_the_high_mark_counts_the_longest_prefix_that_the_group_can_hold(
    snapshot: DecodeSnapshot, limits: PolicyLimits
) -> None:
    assert assign_decode(snapshot, limits).high_mark_tokens == pytest.approx(naive_high_mark(snapshot, limits))


@laws
@given(decode_snapshots(), policy_limits())
def test_placements_are_a_prefix_of_the_group_queue(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    decision = assign_decode(snapshot, limits)

    placed = [p.turn_id for p in decision.placements]
    assert placed == [turn.turn_id for turn in snapshot.waiting[: len(placed)]]
    assert len(placed) + decision.waiting == len(snapshot.waiting)


@laws
@given(decode_snapshots(), policy_limits())
def test_hbm_is_never_oversold(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    free = {engine.engine_id: engine.free_hbm_tokens for engine in snapshot.engines}
    needs = {turn.turn_id: turn.total_tokens_max for turn in snapshot.waiting}

    for placement in assign_decode(snapshot, limits).placements:
        assert placement.free_hbm_tokens == free[placement.engine_id]
        free[placement.engine_id] -= needs[placement.turn_id]
        assert free[placement.engine_id] >= 0


@laws
@given(decode_snapshots(engines_min=1), policy_limits())
def test_it_stops_only_when_no_engine_can_hold_the_head(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    free = {engine.engine_id: engine.free_hbm_tokens for engine in snapshot.engines}
    needs = {turn.turn_id: turn.total_tokens_max for turn in snapshot.waiting}

    decision = assign_decode(snapshot, limits)

    for placement in decision.placements:
        free[placement.engine_id] -= needs[placement.turn_id]
    left = snapshot.waiting[len(decision.placements) :]
    if left:
        assert decision.stop is StopReason.NO_HBM
        assert max(free.values()) < left[0].total_tokens_max
    else:
        assert decision.stop is StopReason.EMPTY_QUEUE


@laws
@given(decode_snapshots(engines_min=1), policy_limits())
def test_low_before_high_and_within_the_class_the_fewest(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    turns = {turn.turn_id: turn for turn in snapshot.waiting}
    engines = {engine.engine_id: engine for engine in snapshot.engines}
    decision = assign_decode(snapshot, limits)

    for placement in decision.placements:
        turn = turns[placement.turn_id]
        roomy = [e for e in engines.values() if e.free_hbm_tokens >= turn.total_tokens_max]
        low = [e for e in roomy if e.open_tokens + turn.prompt_tokens <= decision.high_mark_tokens]
        if low:
            assert placement.reason is PlacementReason.LOW_CLASS
            assert placement.open_turns == min(e.open_turns for e in low)
            assert placement.open_tokens + turn.prompt_tokens <= decision.high_mark_tokens
        else:
            assert placement.reason is PlacementReason.HIGH_CLASS
            assert placement.open_tokens == min(e.open_tokens for e in roomy)
        engines[placement.engine_id] = _with(engines[placement.engine_id], turn)


@laws
@given(decode_snapshots(), policy_limits(), st.randoms(use_true_random=False))
def test_shuffling_the_engines_changes_nothing(snapshot: DecodeSnapshot, limits: PolicyLimits, random: Random) -> None:
    engines = list(snapshot.engines)
    random.shuffle(engines)

    assert assign_decode(replace(snapshot, engines=tuple(engines)), limits) == assign_decode(snapshot, limits)


@laws
@given(decode_snapshots(), policy_limits())
def test_renaming_the_engines_renames_the_answer_and_nothing_else(
    snapshot: DecodeSnapshot, limits: PolicyLimits
) -> None:
    names = {e.engine_id: EngineId(f"z{100 - e.rank}") for e in snapshot.engines}  # the order of names turns round
    renamed = tuple(e._replace(engine_id=names[e.engine_id]) for e in snapshot.engines)

    before = assign_decode(snapshot, limits)
    after = assign_decode(replace(snapshot, engines=renamed), limits)

    assert after.placements == tuple(p._replace(engine_id=names[p.engine_id]) for p in before.placements)


@few
@given(st.integers(1, 5))
def test_ties_of_one_turn_fetches_move_through_the_rotation(rank_gap: int) -> None:
    engines = tuple(
        EngineView(EngineId(f"e{rank}"), NodeId("n0"), rank, 0, 0, 1_000) for rank in range(0, 16 * rank_gap, rank_gap)
    )
    got: Counter[EngineId] = Counter()

    for rotation in range(160):
        snapshot = DecodeSnapshot((WaitingTurn(TurnId("t"), rotation, 0, 10),), engines, rotation=rotation)
        got[assign_decode(snapshot, PolicyLimits()).placements[0].engine_id] += 1

    assert set(got.values()) == {10}


@laws
@given(decode_snapshots(engines_min=1), policy_limits(), st.integers(1, 500))
def test_a_de_in_debt_does_not_lower_the_high_mark(snapshot: DecodeSnapshot, limits: PolicyLimits, debt: int) -> None:
    full, indebted = (
        replace(snapshot, engines=(snapshot.engines[0]._replace(free_hbm_tokens=free), *snapshot.engines[1:]))
        for free in (0, -debt)
    )

    assert assign_decode(indebted, limits).high_mark_tokens == assign_decode(full, limits).high_mark_tokens


# ---- phase 1: across groups


@laws
@given(waiting_turns(), group_views(min_size=1), rotations())
def test_phase_one_drains_the_whole_decode_queue_in_order(
    turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int
) -> None:
    placements = spread_to_groups(turns, groups, rotation=rotation)

    assert [p.turn_id for p in placements] == [turn.turn_id for turn in turns]


@laws
@given(waiting_turns(), rotations())
def test_without_groups_every_turn_keeps_its_place(turns: tuple[WaitingTurn, ...], rotation: int) -> None:
    assert spread_to_groups(turns, (), rotation=rotation) == ()


@laws
@given(waiting_turns(), group_views(min_size=1), rotations())
def test_each_turn_goes_to_the_group_with_the_least_tokens(
    turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int
) -> None:
    tokens = {group.group_id: group.open_tokens + group.queued_tokens for group in groups}

    for turn, placement in zip(turns, spread_to_groups(turns, groups, rotation=rotation), strict=True):
        assert placement.group_tokens == tokens[placement.group_id] == min(tokens.values())
        tokens[placement.group_id] += turn.prompt_tokens


@laws
@given(waiting_turns(), group_views(), rotations(), st.randoms(use_true_random=False))
def test_shuffling_the_groups_changes_nothing(
    turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int, random: Random
) -> None:
    shuffled = list(groups)
    random.shuffle(shuffled)

    assert spread_to_groups(turns, shuffled, rotation=rotation) == spread_to_groups(turns, groups, rotation=rotation)


@few
@given(st.integers(1, 7))
def test_tied_groups_take_turns_whatever_their_ranks(rank_gap: int) -> None:
    """Groups that left leave gaps in the ranks; the others share ties evenly all the same."""
    groups = [GroupView(GroupId(f"g{rank}"), rank, 0) for rank in range(0, 4 * rank_gap, rank_gap)]
    turn = WaitingTurn(TurnId("t"), 0, 0, 10)

    got = Counter(spread_to_groups([turn], groups, rotation=rotation)[0].group_id for rotation in range(40))

    assert set(got.values()) == {10}


def _with(engine: EngineView, turn: WaitingTurn) -> EngineView:
    return engine._replace(
        open_turns=engine.open_turns + 1,
        open_tokens=engine.open_tokens + turn.prompt_tokens,
        free_hbm_tokens=engine.free_hbm_tokens - turn.total_tokens_max,
    )
