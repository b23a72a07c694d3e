"""DE scheduling as the paper states it, claim by claim (§6.1, phase 1 across groups and phase 2 inside one)."""

from dataclasses import replace

import pytest

from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId
from dualpath.scheduler.policy.decisions import DecodeDecision, PlacementReason, StopReason
from dualpath.scheduler.policy.decode import assign_decode, spread_to_groups
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, EngineView, GroupView, PolicyLimits, WaitingTurn

LIMITS = PolicyLimits()


# ---- phase 1


def test_the_whole_decode_queue_is_drained_at_once() -> None:
    """§6.1, phase 1: all of it, however loaded the groups are."""
    placements = spread_to_groups(_line([10] * 5), [GroupView(GroupId("g0"), 0, 10**9)])

    assert len(placements) == 5


def test_each_turn_goes_to_the_group_with_the_least_tokens() -> None:
    """§6.1, phase 1: total tok_e over the group's engines, counted up as turns are given."""
    groups = [GroupView(GroupId("g0"), 0, 25), GroupView(GroupId("g1"), 1, 0)]

    placements = spread_to_groups(_line([20, 20, 20]), groups)

    assert [p.group_id for p in placements] == ["g1", "g1", "g0"]
    assert [p.group_tokens for p in placements] == [0, 20, 25]


def test_turns_in_the_group_queue_count_as_well() -> None:
    """§6.1, phase 1: turns waiting in the private queue are part of a group's total."""
    groups = [GroupView(GroupId("g0"), 0, 10, queued_tokens=50), GroupView(GroupId("g1"), 1, 40)]

    assert spread_to_groups(_line([1]), groups)[0].group_id == "g1"


def test_tied_groups_rotate() -> None:
    """§6.1, our reading of ties."""
    groups = [GroupView(GroupId(f"g{i}"), i, 0) for i in range(3)]

    chosen = [spread_to_groups(_line([10]), groups, rotation=r)[0].group_id for r in range(4)]

    assert chosen == ["g0", "g1", "g2", "g0"]


# ---- phase 2: the high mark


def test_the_high_mark_is_five_percent_over_the_even_share() -> None:
    """§6.1, phase 2: Z = 1.05 x (sum of len over R + sum of tok_e) / |G| = 1.05 x (100 + 300) / 2."""
    decision = _assign([40, 60], _de("a", 100), _de("b", 200))

    assert decision.high_mark_tokens == pytest.approx(210)


def test_the_high_mark_counts_only_what_the_group_can_hold() -> None:
    """§6.1, phase 2: R is the longest prefix that fits the total free HBM: 41 + 61 of 110, not the third."""
    decision = _assign([40, 60, 500], _de("a", 0, free=60), _de("b", 0, free=50))

    assert decision.high_mark_tokens == pytest.approx(1.05 * 100 / 2)


def test_r_ends_at_the_first_turn_that_does_not_fit() -> None:
    """§6.1, phase 2: a prefix; the short third turn is not counted past the second."""
    decision = _assign([40, 500, 1], _de("a", 0, free=60), _de("b", 0, free=50))

    assert decision.high_mark_tokens == pytest.approx(1.05 * 40 / 2)


def test_r_ignores_fragmentation() -> None:
    """§6.1, phase 2: 81 tokens fit 2 x 50 in total although no single DE can hold them."""
    decision = _assign([80], _de("a", 0, free=50), _de("b", 0, free=50))

    assert decision.high_mark_tokens == pytest.approx(1.05 * 80 / 2)
    assert (decision.placements, decision.stop) == ((), StopReason.NO_HBM)


def test_the_high_mark_stays_for_the_whole_fetch() -> None:
    """§6.1, phase 2: fixed for this fetch. Z = 52.5 from the start, so the second turn of 50 finds only b low."""
    decision = _assign([50, 50], _de("a", 0), _de("b", 0))

    assert [p.reason for p in decision.placements] == [PlacementReason.LOW_CLASS, PlacementReason.LOW_CLASS]
    assert _pairs(decision) == [("t1", "a"), ("t2", "b")]


# ---- phase 2: the classes


def test_in_the_low_class_the_fewest_open_turns_win() -> None:
    """§6.1, phase 2: least seq_e, although b has fewer tokens; c is over Z = 1.05 x (10 + 290) / 3 = 105."""
    decision = _assign([10], _de("a", 90, turns=1), _de("b", 50, turns=2), _de("c", 150, turns=0))

    assert decision.high_mark_tokens == pytest.approx(105)
    assert _pairs(decision) == [("t1", "a")]


def test_low_comes_before_high_even_with_more_turns() -> None:
    """§6.1, phase 2: a has fewer turns but would pass Z = 1.05 x 200 / 2 = 105."""
    decision = _assign([10], _de("a", 100, turns=1), _de("b", 90, turns=9))

    assert _pairs(decision) == [("t1", "b")]
    assert decision.placements[0].reason is PlacementReason.LOW_CLASS


def test_the_low_class_counts_the_turn_itself() -> None:
    """§6.1, phase 2: tok_e + len(r) <= Z. Z = 1.05 x 200 / 2 = 105: at 95 a turn of 10 is low, at 96 it is high."""
    at_the_mark = _assign([10], _de("a", 95, turns=0), _de("b", 95, turns=1))
    over_it = _assign([10], _de("a", 96, turns=0), _de("b", 94, turns=1))

    assert _pairs(at_the_mark) == [("t1", "a")]
    assert _pairs(over_it) == [("t1", "b")]


def test_if_every_roomy_engine_is_high_the_least_tokens_win() -> None:
    """§6.1, phase 2: c is low but has no HBM; of a and b the one with fewer tokens, although it has more turns."""
    decision = _assign([10], _de("a", 100, turns=1), _de("b", 99, turns=8), _de("c", 0, free=5))

    assert _pairs(decision) == [("t1", "b")]
    assert decision.placements[0].reason is PlacementReason.HIGH_CLASS


# ---- phase 2: HBM


def test_hbm_is_promised_for_prompt_and_generation() -> None:
    """§6.1 and our reading: 10 tokens of prompt and 5 to generate need 15, not 10."""
    turns = (WaitingTurn(TurnId("t1"), 1, 0, 10, max_new_tokens=5),)

    enough = assign_decode(DecodeSnapshot(turns, (_de("a", 0, free=15),)), LIMITS)
    short = assign_decode(DecodeSnapshot(turns, (_de("a", 0, free=14),)), LIMITS)

    assert _pairs(enough) == [("t1", "a")]
    assert (short.placements, short.stop) == ((), StopReason.NO_HBM)


def test_engines_without_the_hbm_are_no_candidates() -> None:
    """§6.1, phase 2: among DEs with enough free HBM."""
    decision = _assign([10], _de("a", 0, free=10), _de("b", 500, turns=9, free=11))

    assert _pairs(decision) == [("t1", "b")]


def test_the_fetch_stops_when_no_engine_has_the_hbm_for_the_head() -> None:
    """§6.1, phase 2: stop; the short turn behind the head does not pass it."""
    decision = _assign([10, 90, 5], _de("a", 0, free=50), _de("b", 0, free=50))

    assert _pairs(decision) == [("t1", "a")]
    assert (decision.stop, decision.waiting) == (StopReason.NO_HBM, 2)


def test_full_ties_rotate() -> None:
    """§6.1, our reading of ties."""
    snapshot = DecodeSnapshot(_line([10]), (_de("a", 0, rank=0), _de("b", 0, rank=1), _de("c", 0, rank=2)))

    chosen = [assign_decode(replace(snapshot, rotation=r), LIMITS).placements[0].engine_id for r in range(4)]

    assert chosen == ["a", "b", "c", "a"]


def _assign(sizes: list[int], *engines: EngineView) -> DecodeDecision:
    ranked = tuple(engine._replace(rank=rank) for rank, engine in enumerate(engines))
    return assign_decode(DecodeSnapshot(_line(sizes), ranked), LIMITS)


def _line(sizes: list[int]) -> tuple[WaitingTurn, ...]:
    return tuple(WaitingTurn(TurnId(f"t{n}"), n, 0, size, max_new_tokens=1) for n, size in enumerate(sizes, start=1))


def _de(name: str, open_tokens: int, *, turns: int = 0, free: int = 10_000, rank: int = 0) -> EngineView:
    return EngineView(EngineId(name), NodeId("n0"), rank, turns, open_tokens, free)


def _pairs(decision: DecodeDecision) -> list[tuple[str, str]]:
    return [(p.turn_id, p.engine_id) for p in decision.placements]
