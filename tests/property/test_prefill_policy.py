"""Laws of PE scheduling, over whole random snapshots."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.ids import EngineId, NodeId, TurnId
from dualpath.scheduler.policy.decisions import PlacementReason, StopReason
from dualpath.scheduler.policy.prefill import assign_prefill
from dualpath.scheduler.policy.snapshot import (
    Classify,
    EngineView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)
from naive_policy import naive_prefill
from strategies import examples, policy_limits, prefill_snapshots

against_the_oracle = examples(2)
laws = examples(0.5)
few = examples(0.1)  # one number is drawn
each_placement = policy_limits([Classify.EACH_PLACEMENT])


@against_the_oracle
@given(prefill_snapshots(), policy_limits())
def test_the_answer_is_that_of_the_rules_read_literally(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    decision = assign_prefill(snapshot, limits)

    assert [(p.turn_id, p.engine_id) for p in decision.placements] == naive_prefill(snapshot, limits)


@laws
@given(prefill_snapshots(), policy_limits())
def test_placements_are_a_prefix_of_the_fifo(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    placed = [p.turn_id for p in assign_prefill(snapshot, limits).placements]

    assert placed == [turn.turn_id for turn in snapshot.waiting[: len(placed)]]


@laws
@given(prefill_snapshots(), policy_limits())
def test_placed_and_waiting_turns_are_the_whole_fifo(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    decision = assign_prefill(snapshot, limits)

    assert len(decision.placements) + decision.waiting == len(snapshot.waiting)
    assert (decision.waiting == 0) or decision.stop is not StopReason.EMPTY_QUEUE


@laws
@given(prefill_snapshots(), each_placement)
def test_an_engine_over_beta_gets_nothing(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    tokens = {engine.engine_id: engine.open_tokens for engine in snapshot.engines}
    prompt = {turn.turn_id: turn.prompt_tokens for turn in snapshot.waiting}

    for placement in assign_prefill(snapshot, limits).placements:
        assert tokens[placement.engine_id] <= limits.beta_tokens
        tokens[placement.engine_id] += prompt[placement.turn_id]


@laws
@given(prefill_snapshots(), policy_limits([Classify.ONCE_PER_FETCH]))
def test_an_engine_over_beta_at_the_fetch_gets_nothing_even_if_classes_are_fixed(
    snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    over = {engine.engine_id for engine in snapshot.engines if engine.open_tokens > limits.beta_tokens}

    assert not over & {p.engine_id for p in assign_prefill(snapshot, limits).placements}


@laws
@given(prefill_snapshots(), each_placement)
def test_an_engine_overshoots_beta_by_less_than_one_turn(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    tokens = {engine.engine_id: engine.open_tokens for engine in snapshot.engines}
    prompt = {turn.turn_id: turn.prompt_tokens for turn in snapshot.waiting}
    last: dict[EngineId, int] = {}

    for placement in assign_prefill(snapshot, limits).placements:
        last[placement.engine_id] = prompt[placement.turn_id]
        tokens[placement.engine_id] += prompt[placement.turn_id]

    assert all(tokens[engine_id] - size <= limits.beta_tokens for engine_id, size in last.items())


@laws
@given(prefill_snapshots(), each_placement)
def test_a_long_read_queue_gets_a_turn_only_when_no_short_one_is_under_beta(
    snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    tokens = {engine.engine_id: engine.open_tokens for engine in snapshot.engines}
    prompt = {turn.turn_id: turn.prompt_tokens for turn in snapshot.waiting}
    short = {
        engine.engine_id
        for engine in snapshot.engines
        if snapshot.read_queue_tokens.get(engine.node_id, 0) <= limits.alpha_tokens
    }

    for placement in assign_prefill(snapshot, limits).placements:
        open_short = [engine_id for engine_id in short if tokens[engine_id] <= limits.beta_tokens]
        assert placement.reason is (PlacementReason.SHORT_QUEUE if open_short else PlacementReason.LONG_QUEUE)
        assert (placement.engine_id in short) == bool(open_short)
        tokens[placement.engine_id] += prompt[placement.turn_id]


@laws
@given(prefill_snapshots(engines_min=1), policy_limits())
def test_the_head_is_placed_whenever_an_engine_is_at_or_under_beta(
    snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    decision = assign_prefill(snapshot, limits)

    can_serve = any(engine.open_tokens <= limits.beta_tokens for engine in snapshot.engines)
    assert bool(decision.placements) == (can_serve and bool(snapshot.waiting))


@laws
@given(prefill_snapshots(), policy_limits(), st.randoms(use_true_random=False))
def test_shuffling_the_engines_changes_nothing(snapshot: PrefillSnapshot, limits: PolicyLimits, random: Random) -> None:
    engines = list(snapshot.engines)
    random.shuffle(engines)

    assert assign_prefill(replace(snapshot, engines=tuple(engines)), limits) == assign_prefill(snapshot, limits)


@laws
@given(prefill_snapshots(), policy_limits())
def test_renaming_the_engines_renames_the_answer_and_nothing_else(
    snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    names = {e.engine_id: EngineId(f"z{100 - e.rank}") for e in snapshot.engines}  # the order of names turns round
    renamed = tuple(e._replace(engine_id=names[e.engine_id]) for e in snapshot.engines)

    before = assign_prefill(snapshot, limits)
    after = assign_prefill(replace(snapshot, engines=renamed), limits)

    assert after.placements == tuple(p._replace(engine_id=names[p.engine_id]) for p in before.placements)


@laws
@given(prefill_snapshots(), policy_limits())
def test_a_placement_shows_the_load_it_was_decided_on(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    engines = {engine.engine_id: engine for engine in snapshot.engines}
    prompt = {turn.turn_id: turn.prompt_tokens for turn in snapshot.waiting}
    given_turns: Counter[EngineId] = Counter()
    given_tokens: Counter[EngineId] = Counter()

    for p in assign_prefill(snapshot, limits).placements:
        engine = engines[p.engine_id]
        assert p.open_turns == engine.open_turns + given_turns[p.engine_id]
        assert p.open_tokens == engine.open_tokens + given_tokens[p.engine_id]
        assert p.read_queue_tokens == snapshot.read_queue_tokens.get(engine.node_id, 0)
        given_turns[p.engine_id] += 1
        given_tokens[p.engine_id] += prompt[p.turn_id]


@laws
@given(prefill_snapshots(engines_min=2), each_placement)
def test_one_fetch_equals_many_fetches_of_one_turn_each(snapshot: PrefillSnapshot, limits: PolicyLimits) -> None:
    """Nothing is carried inside a fetch that the snapshot does not hold: batching is not a decision."""
    whole = assign_prefill(snapshot, limits)

    engines, placements = snapshot.engines, []
    for turn in snapshot.waiting:
        one = assign_prefill(replace(snapshot, waiting=(turn,), engines=engines), limits)
        if not one.placements:
            break
        placements.append(one.placements[0])
        engines = tuple(_with(e, turn) if e.engine_id == placements[-1].engine_id else e for e in engines)

    assert tuple(placements) == whole.placements


@few
@given(st.integers(1, 200), st.integers(1, 5))
def test_idle_engines_share_short_turns_evenly(length: int, rank_gap: int) -> None:
    """16 idle PEs, 1,600 short turns in one fetch: exactly 100 each."""
    snapshot = PrefillSnapshot(_turns(1_600, length), _idle(range(0, 16 * rank_gap, rank_gap)), {})

    placements = assign_prefill(snapshot, PolicyLimits(beta_tokens=1_000_000)).placements

    assert set(Counter(p.engine_id for p in placements).values()) == {100}


@few
@given(st.integers(1, 5))
def test_ties_of_one_turn_fetches_move_through_the_rotation(rank_gap: int) -> None:
    """Every fetch finds 16 idle PEs and one turn that ends before the next: a fixed order would load one PE only."""
    turns = _turns(160, 10)
    got: Counter[EngineId] = Counter()

    for rotation, turn in enumerate(turns):
        snapshot = PrefillSnapshot((turn,), _idle(range(0, 16 * rank_gap, rank_gap)), {}, rotation=rotation)
        got[assign_prefill(snapshot, PolicyLimits()).placements[0].engine_id] += 1

    assert len(got) == 16
    assert max(got.values()) <= 2 * len(turns) // 16


@laws
@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(0, 20))
def test_a_long_turn_at_the_head_is_never_overtaken(fillers: list[int], beta: int) -> None:
    """One turn far over beta, short ones behind it: however often engines empty, the long one goes first."""
    turns = tuple(WaitingTurn(TurnId(f"t{i}"), i, 0, size) for i, size in enumerate([10_000, *fillers]))
    engines = _idle([0, 1])

    decision = assign_prefill(PrefillSnapshot(turns, engines, {}), PolicyLimits(beta_tokens=beta))

    assert decision.placements[0].turn_id == "t0"


@laws
@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 100))
def test_loads_of_a_fetch_differ_by_at_most_one_turn(engine_count: int, turn_count: int, longest: int) -> None:
    """List scheduling: from idle, the gap between the most and the least loaded PE is at most the longest turn."""
    sizes = [1 + (i * 37) % longest for i in range(turn_count)]
    turns = tuple(WaitingTurn(TurnId(f"t{i}"), i, 0, size) for i, size in enumerate(sizes))
    snapshot = PrefillSnapshot(turns, _idle(range(engine_count)), {})
    tokens: dict[EngineId, int] = defaultdict(int, {e.engine_id: 0 for e in snapshot.engines})

    for placement, size in zip(assign_prefill(snapshot, PolicyLimits()).placements, sizes, strict=True):
        tokens[placement.engine_id] += size

    assert max(tokens.values()) - min(tokens.values()) <= longest


def _turns(count: int, length: int) -> tuple[WaitingTurn, ...]:
    return tuple(WaitingTurn(TurnId(f"t{i}"), i, 0, length) for i in range(count))


def _idle(ranks: Iterable[int]) -> tuple[EngineView, ...]:
    return tuple(EngineView(EngineId(f"e{rank}"), NodeId(f"n{rank // 8}"), rank, 0, 0) for rank in ranks)


def _with(engine: EngineView, turn: WaitingTurn) -> EngineView:
    return engine._replace(open_turns=engine.open_turns + 1, open_tokens=engine.open_tokens + turn.prompt_tokens)
