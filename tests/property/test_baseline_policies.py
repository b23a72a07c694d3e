"""Laws that hold for every policy of the registry, and those of the baselines alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.ids import NodeId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.baselines import round_robin_decode, round_robin_groups, round_robin_prefill
from dualpath.scheduler.policy.decisions import PlacementReason, StopReason
from dualpath.scheduler.policy.registry import POLICIES, Policy
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
    in_rotation,
)
from strategies import (
    decode_snapshots,
    examples,
    group_views,
    policy_limits,
    prefill_snapshots,
    read_queues,
    rotations,
    waiting_turns,
)

laws = examples(0.3)
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
nodes = st.sampled_from([NodeId(f"n{i}") for i in range(4)])


@every_policy
@laws
@given(prefill_snapshots(), policy_limits())
def test_prefill_places_a_prefix_and_accounts_for_the_rest(
    policy: Policy, snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    decision = policy.assign_prefill(snapshot, limits)

    placed = [p.turn_id for p in decision.placements]
    assert placed == [turn.turn_id for turn in snapshot.waiting[: len(placed)]]
    assert decision.waiting == len(snapshot.waiting) - len(placed)


@every_policy
@laws
@given(decode_snapshots(), policy_limits())
def test_decode_places_a_prefix_and_never_oversells_hbm(
    policy: Policy, snapshot: DecodeSnapshot, limits: PolicyLimits
) -> None:
    free = {engine.engine_id: engine.free_hbm_tokens for engine in snapshot.engines}
    decision = policy.assign_decode(snapshot, limits)

    for turn, placement in zip(snapshot.waiting, decision.placements, strict=False):
        assert placement.turn_id == turn.turn_id
        assert free[placement.engine_id] == placement.free_hbm_tokens >= turn.total_tokens_max
        free[placement.engine_id] -= turn.total_tokens_max
    assert decision.waiting == len(snapshot.waiting) - len(decision.placements)


@every_policy
@laws
@given(decode_snapshots(engines_min=1), policy_limits())
def test_decode_waits_only_for_hbm(policy: Policy, snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    decision = policy.assign_decode(snapshot, limits)

    assert decision.stop is (StopReason.NO_HBM if decision.waiting else StopReason.EMPTY_QUEUE)


@every_policy
@laws
@given(waiting_turns(), group_views(), rotations())
def test_the_decode_queue_is_drained_if_there_is_a_group(
    policy: Policy, turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int
) -> None:
    placements = policy.spread_to_groups(turns, groups, rotation=rotation)

    assert [p.turn_id for p in placements] == [turn.turn_id for turn in turns if groups]


@every_policy
@laws
@given(nodes, nodes, read_queues(), rotations())
def test_a_turn_without_hits_reads_nothing_and_counts_as_pe_side(
    policy: Policy, pe_node: NodeId, de_node: NodeId, queues: dict[NodeId, int], rotation: int
) -> None:
    decision = policy.choose_read_side(pe_node, de_node, queues, hit_tokens=0, rotation=rotation)

    assert decision.side is ReadSide.PE
    assert decision.reason.value == "no_hits"


@laws
@given(prefill_snapshots(engines_min=1), policy_limits())
def test_round_robin_ignores_load_and_differs_by_one_turn_at_most(
    snapshot: PrefillSnapshot, limits: PolicyLimits
) -> None:
    decision = round_robin_prefill(snapshot, limits)

    counts = Counter(p.engine_id for p in decision.placements)
    shares = [counts[engine.engine_id] for engine in snapshot.engines]
    assert max(shares) - min(shares) <= 1
    assert all(p.reason is PlacementReason.ROUND_ROBIN for p in decision.placements)
    assert decision.stop is StopReason.EMPTY_QUEUE


@laws
@given(decode_snapshots(engines_min=1), policy_limits())
def test_round_robin_takes_the_next_engine_that_has_the_hbm(snapshot: DecodeSnapshot, limits: PolicyLimits) -> None:
    order = [engine.engine_id for engine in in_rotation(snapshot.engines, snapshot.rotation)]
    free = {engine.engine_id: engine.free_hbm_tokens for engine in snapshot.engines}

    for turn, placement in zip(snapshot.waiting, round_robin_decode(snapshot, limits).placements, strict=False):
        skipped = order[: order.index(placement.engine_id)]
        assert all(free[engine_id] < turn.total_tokens_max for engine_id in skipped)
        free[placement.engine_id] -= turn.total_tokens_max
        order = [*order[len(skipped) + 1 :], *skipped, placement.engine_id]


@laws
@given(waiting_turns(), group_views(min_size=1), rotations())
def test_round_robin_groups_differ_by_one_turn_at_most(
    turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int
) -> None:
    placements = round_robin_groups(turns, groups, rotation=rotation)

    counts = Counter(p.group_id for p in placements)
    shares = [counts[group.group_id] for group in groups]
    assert max(shares) - min(shares) <= 1


@laws
@given(waiting_turns(), group_views(min_size=1), rotations())
def test_a_round_robin_group_placement_shows_the_tokens_before_it(
    turns: tuple[WaitingTurn, ...], groups: tuple[GroupView, ...], rotation: int
) -> None:
    tokens = {group.group_id: group.open_tokens + group.queued_tokens for group in groups}

    for turn, placement in zip(turns, round_robin_groups(turns, groups, rotation=rotation), strict=True):
        assert placement.group_tokens == tokens[placement.group_id]
        tokens[placement.group_id] += turn.prompt_tokens
