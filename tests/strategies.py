"""Hypothesis strategies for whole snapshots: small numbers, many ties, gaps in the ranks, engines over every limit."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st

from dualpath.engine_agent.batch.quota import AttentionCost, PrefillItem
from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId
from dualpath.scheduler.policy.snapshot import (
    Classify,
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)

TURNS_MAX = 12
ENGINES_MAX = 6
NODES_MAX = 3
RANK_MAX = 40
ROTATION_MAX = 50


def examples(share: float) -> settings:
    """This share of the examples of the profile in force: the gate stays quick, and nightly runs still draw more."""
    return settings(max_examples=max(1, int(share * settings().max_examples)), deadline=None)


# Few distinct values, so that ties and exact limits come up often.
_loads = st.sampled_from((0, 1, 10, 50, 64, 100, 150, 200))


@st.composite
def waiting_turns(draw: st.DrawFn, *, min_size: int = 0, max_size: int = TURNS_MAX) -> tuple[WaitingTurn, ...]:
    """A line in order of arrival, turns of 1 to 181 tokens."""
    shapes = draw(
        st.lists(
            st.tuples(st.sampled_from((0, 64, 128)), st.integers(1, 50), st.integers(1, 3)),
            min_size=min_size,
            max_size=max_size,
        )
    )
    return tuple(WaitingTurn(TurnId(f"t{i}"), i, hit, miss, max_new) for i, (hit, miss, max_new) in enumerate(shapes))


@st.composite
def engine_views(draw: st.DrawFn, *, min_size: int = 0, max_size: int = ENGINES_MAX) -> tuple[EngineView, ...]:
    """Engines of one group, in any order, on a few nodes; ranks are unique but may have gaps."""
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(0, RANK_MAX),
                st.integers(0, NODES_MAX - 1),
                st.integers(0, 4),
                _loads,
                st.integers(-50, 600),
            ),
            unique_by=lambda shape: shape[0],
            min_size=min_size,
            max_size=max_size,
        )
    )
    return tuple(
        EngineView(EngineId(f"e{rank}"), NodeId(f"n{node}"), rank, turns, tokens, free_hbm)
        for rank, node, turns, tokens, free_hbm in shapes
    )


@st.composite
def prefill_snapshots(draw: st.DrawFn, *, engines_min: int = 0) -> PrefillSnapshot:
    return PrefillSnapshot(
        waiting=draw(waiting_turns()),
        engines=draw(engine_views(min_size=engines_min)),
        read_queue_tokens=draw(read_queues()),
        rotation=draw(rotations()),
    )


@st.composite
def decode_snapshots(draw: st.DrawFn, *, engines_min: int = 0) -> DecodeSnapshot:
    return DecodeSnapshot(
        waiting=draw(waiting_turns()),
        engines=draw(engine_views(min_size=engines_min)),
        rotation=draw(rotations()),
    )


@st.composite
def group_views(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 6) -> tuple[GroupView, ...]:
    ranks = draw(st.lists(st.integers(0, RANK_MAX), unique=True, min_size=min_size, max_size=max_size))
    return tuple(GroupView(GroupId(f"g{rank}"), rank, draw(_loads), draw(_loads)) for rank in ranks)


def read_queues() -> st.SearchStrategy[dict[NodeId, int]]:
    """Some nodes have said nothing yet."""
    return st.dictionaries(st.sampled_from([NodeId(f"n{i}") for i in range(NODES_MAX)]), _loads)


def rotations() -> st.SearchStrategy[int]:
    return st.integers(0, ROTATION_MAX)


def policy_limits(classify: Sequence[Classify] = tuple(Classify)) -> st.SearchStrategy[PolicyLimits]:
    return st.builds(
        PolicyLimits,
        alpha_tokens=_loads,
        beta_tokens=_loads,
        high_mark_factor=st.sampled_from((1.0, 1.05, 2.0)),
        classify=st.sampled_from(classify),
    )


@st.composite
def prefill_items(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 12) -> tuple[PrefillItem, ...]:
    shapes = draw(
        st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 1_000)), min_size=min_size, max_size=max_size)
    )
    return tuple(PrefillItem(f"t{i}", 1, cached, remaining) for i, (cached, remaining) in enumerate(shapes))


def attention_costs() -> st.SearchStrategy[AttentionCost]:
    """From free to so dear that 64 tokens exceed any quota of these tests."""
    return st.builds(
        AttentionCost,
        per_token_pair_s=st.sampled_from((0.0, 1e-7, 3e-6)),
        per_token_s=st.sampled_from((0.0, 1e-5, 1e-2)),
        per_item_s=st.sampled_from((0.0, 1e-3, 0.25)),
    )
