"""PE scheduling as the paper states it, claim by claim (§6.1, Algorithm 1)."""

from collections import Counter
from dataclasses import replace

from dualpath.model.ids import EngineId, NodeId, TurnId
from dualpath.scheduler.policy.decisions import PlacementReason, PrefillDecision, StopReason
from dualpath.scheduler.policy.prefill import assign_prefill
from dualpath.scheduler.policy.snapshot import Classify, EngineView, PolicyLimits, PrefillSnapshot, WaitingTurn

SHORT, LONG = NodeId("short"), NodeId("long")
QUEUES = {SHORT: 100, LONG: 101}
LIMITS = PolicyLimits(alpha_tokens=100, beta_tokens=50)


def test_an_engine_over_beta_is_overloaded_and_gets_nothing() -> None:
    """§6.1, Algorithm 1: C1 = {tok_e > beta}."""
    decision = assign_prefill(_snapshot([10], _pe("a", 51), _pe("b", 50)), LIMITS)

    assert _pairs(decision) == [("t1", "b")]


def test_exactly_beta_is_not_overloaded() -> None:
    """§6.1, Algorithm 1: C1 is strict, tok_e > beta."""
    decision = assign_prefill(_snapshot([10], _pe("a", 50)), LIMITS)

    assert _pairs(decision) == [("t1", "a")]


def test_a_short_read_queue_is_preferred_even_to_an_idle_engine() -> None:
    """§6.1, Algorithm 1: C2 = {read_q <= alpha, tok_e <= beta} before C3, whatever tok_e is in C3."""
    decision = assign_prefill(_snapshot([10], _pe("idle", 0, LONG), _pe("busy", 40, SHORT)), LIMITS)

    assert _pairs(decision) == [("t1", "busy")]
    assert decision.placements[0].reason is PlacementReason.SHORT_QUEUE


def test_exactly_alpha_is_a_short_queue() -> None:
    """§6.1, Algorithm 1: C2 has read_q <= alpha; QUEUES puts one node at alpha and the other one token above."""
    decision = assign_prefill(_snapshot([10, 10], _pe("a", 0, SHORT), _pe("b", 0, LONG)), LIMITS)

    assert [p.engine_id for p in decision.placements] == ["a", "a"]


def test_within_the_preferred_class_the_least_open_tokens_win() -> None:
    """§6.1, Algorithm 1: argmin of tok_e over C2."""
    decision = assign_prefill(_snapshot([10], _pe("a", 30), _pe("b", 20), _pe("c", 40)), LIMITS)

    assert _pairs(decision) == [("t1", "b")]


def test_long_read_queues_serve_when_no_short_one_is_left() -> None:
    """§6.1, Algorithm 1: else argmin of tok_e over C3."""
    decision = assign_prefill(_snapshot([10], _pe("a", 51, SHORT), _pe("b", 9, LONG), _pe("c", 5, LONG)), LIMITS)

    assert _pairs(decision) == [("t1", "c")]
    assert decision.placements[0].reason is PlacementReason.LONG_QUEUE


def test_the_fetch_stops_when_both_classes_are_empty() -> None:
    """§6.1, Algorithm 1: else stop; what is left keeps its place."""
    decision = assign_prefill(_snapshot([60, 60, 60], _pe("a", 0), _pe("b", 0)), LIMITS)

    assert _pairs(decision) == [("t1", "a"), ("t2", "b")]
    assert (decision.stop, decision.waiting) == (StopReason.ALL_OVERLOADED, 1)


def test_the_fetch_ends_when_the_fifo_is_empty() -> None:
    """§6.1, Algorithm 1: while the FIFO is not empty."""
    decision = assign_prefill(_snapshot([10], _pe("a", 0)), LIMITS)

    assert (decision.stop, decision.waiting) == (StopReason.EMPTY_QUEUE, 0)


def test_open_tokens_grow_by_the_prompt_after_each_placement() -> None:
    """§6.1, Algorithm 1: tok_e += tokens(r), hit and miss: a then has 30, so b with 1, then 11, takes the rest."""
    turns = (_turn(1, miss=5, hit=25), _turn(2, miss=10), _turn(3, miss=5))
    decision = assign_prefill(PrefillSnapshot(turns, (_pe("a", 0, rank=0), _pe("b", 1, rank=1)), {}), LIMITS)

    assert _pairs(decision) == [("t1", "a"), ("t2", "b"), ("t3", "b")]
    assert [p.open_tokens for p in decision.placements] == [0, 1, 11]


def test_eight_equal_turns_between_two_fetches_split_four_and_four() -> None:
    """F1, §6.1, Algorithm 1: tok_e counts after each pick, so what looked idle does not get all eight."""
    decision = assign_prefill(_snapshot([10] * 8, _pe("a", 0), _pe("b", 0)), PolicyLimits())

    assert Counter(p.engine_id for p in decision.placements) == {"a": 4, "b": 4}


def test_two_groups_that_fetch_at_one_instant_split_evenly_as_well() -> None:
    """F1, §6.1: the second fetch sees a FIFO and a read queue that already count the first one."""
    turns = _line([10] * 8)
    limits = PolicyLimits(alpha_tokens=1_000, beta_tokens=15)
    first = assign_prefill(PrefillSnapshot(turns, (_pe("a0"), _pe("a1", rank=1)), {}), limits)
    left = turns[len(first.placements) :]
    second = assign_prefill(PrefillSnapshot(left, (_pe("b0"), _pe("b1", rank=1)), {}), limits)

    assert Counter(p.engine_id for p in (*first.placements, *second.placements)) == dict.fromkeys(
        ["a0", "a1", "b0", "b1"], 2
    )


def test_a_turn_longer_than_beta_is_served_like_any_other() -> None:
    """§6.1, our reading: the test is on tok_e before the turn, so one overshooting turn is admitted."""
    decision = assign_prefill(_snapshot([5_000, 10], _pe("a", 50)), LIMITS)

    assert _pairs(decision) == [("t1", "a")]
    assert (decision.stop, decision.waiting) == (StopReason.ALL_OVERLOADED, 1)


def test_the_order_of_the_fifo_is_never_changed() -> None:
    """§6.1: one FIFO over all turns; a short turn does not pass a long one at the head."""
    decision = assign_prefill(_snapshot([500, 1, 1], _pe("a", 0), _pe("b", 49)), LIMITS)

    assert [p.turn_id for p in decision.placements] == ["t1", "t2", "t3"]


def test_classes_are_sorted_anew_after_each_placement() -> None:
    """§6.1, our reading: otherwise one fetch could drain the FIFO onto one group and beta would never stop it."""
    snapshot = _snapshot([30] * 6, _pe("a", 0), _pe("b", 0))

    anew = assign_prefill(snapshot, LIMITS)
    literal = assign_prefill(snapshot, replace(LIMITS, classify=Classify.ONCE_PER_FETCH))

    assert (len(anew.placements), anew.stop) == (4, StopReason.ALL_OVERLOADED)
    assert (len(literal.placements), literal.stop) == (6, StopReason.EMPTY_QUEUE)


def test_with_fixed_classes_a_long_queue_waits_for_the_next_fetch() -> None:
    """§6.1, Algorithm 1 read literally: C2 is not empty at the fetch, so C3 gets nothing in it."""
    snapshot = _snapshot([60] * 4, _pe("a", 0, SHORT), _pe("b", 0, LONG))

    literal = assign_prefill(snapshot, replace(LIMITS, classify=Classify.ONCE_PER_FETCH))
    anew = assign_prefill(snapshot, LIMITS)

    assert [p.engine_id for p in literal.placements] == ["a"] * 4
    assert [p.engine_id for p in anew.placements] == ["a", "b"]


def test_equal_tokens_go_to_the_shorter_read_queue() -> None:
    """§6.1, our reading of ties: read_q first."""
    queues = {NodeId("x"): 90, NodeId("y"): 80}
    engines = (_pe("a", 5, NodeId("x"), rank=0, turns=1), _pe("b", 5, NodeId("y"), rank=1, turns=3))

    assert _pairs(assign_prefill(PrefillSnapshot(_line([10]), engines, queues), LIMITS)) == [("t1", "b")]


def test_equal_tokens_and_queues_go_to_the_fewest_turns() -> None:
    """§6.1, our reading of ties: then seq_e."""
    engines = (_pe("a", 5, rank=0, turns=3), _pe("b", 5, rank=1, turns=1))

    assert _pairs(assign_prefill(PrefillSnapshot(_line([10]), engines, {}), LIMITS)) == [("t1", "b")]


def test_full_ties_rotate() -> None:
    """§6.1, our reading of ties: then a rotating order, never always the lowest id."""
    snapshot = _snapshot([10], _pe("a", 0), _pe("b", 0), _pe("c", 0))

    chosen = [assign_prefill(replace(snapshot, rotation=r), LIMITS).placements[0].engine_id for r in range(4)]

    assert chosen == ["a", "b", "c", "a"]


def _snapshot(sizes: list[int], *engines: EngineView) -> PrefillSnapshot:
    ranked = tuple(engine._replace(rank=rank) for rank, engine in enumerate(engines))
    return PrefillSnapshot(_line(sizes), ranked, QUEUES)


def _line(sizes: list[int]) -> tuple[WaitingTurn, ...]:
    return tuple(_turn(number, miss=size) for number, size in enumerate(sizes, start=1))


def _turn(number: int, *, miss: int, hit: int = 0) -> WaitingTurn:
    return WaitingTurn(TurnId(f"t{number}"), number, hit, miss)


def _pe(name: str, open_tokens: int = 0, node: NodeId = SHORT, *, rank: int = 0, turns: int = 0) -> EngineView:
    return EngineView(EngineId(name), node, rank, turns, open_tokens)


def _pairs(decision: PrefillDecision) -> list[tuple[str, str]]:
    return [(p.turn_id, p.engine_id) for p in decision.placements]
