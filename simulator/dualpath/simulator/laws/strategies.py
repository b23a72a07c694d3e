"""Snapshots to try a policy on: small numbers that can be checked in the head, many ties, and everything that is rare.

Several nodes with several engines each, ranks with gaps, empty lines, turns without hits, nodes that said nothing,
engines over beta, engines in debt, no HBM anywhere, rotations from 0 to millions. All of it shrinks to the left.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

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
from dualpath.simulator.laws.cases import DecodeCase, PrefillCase, ReadCase, SpreadCase

TURNS_MAX = 6
ENGINES_MAX = 5
GROUPS_MAX = 4
NODES_MAX = 3
RANK_MAX = 20
AMPLE_HBM_TOKENS = 100_000_000

# Few distinct values, so that ties and exact limits come up often.
_LOADS = (0, 1, 10, 50, 64, 100, 150, 200)
_HITS = (0, 64, 128)  # whole blocks
_NODES = tuple(NodeId(f"n{at}") for at in range(NODES_MAX))


class _Engine(NamedTuple):
    node: int
    rank: int
    open_turns: int = 0
    open_tokens: int = 0
    free_hbm_tokens: int = 0


def prefill_cases() -> st.SearchStrategy[PrefillCase]:
    """Any fetch of a PE group."""
    return st.builds(PrefillCase, _prefill_snapshots(lines(), engine_views(loads())), limits())


def idle_prefill_cases() -> st.SearchStrategy[PrefillCase]:
    """Turns wait, nobody works, nobody reads; only the turns may be long."""
    idle = engine_views(st.just((0, 0, AMPLE_HBM_TOKENS)), min_size=1)
    return st.builds(PrefillCase, _prefill_snapshots(long_lines(), idle, st.just({})), limits())


def tied_prefill_cases() -> st.SearchStrategy[PrefillCase]:
    """One short turn and several idle engines of one node: nothing but the rotation tells them apart."""
    return st.builds(PrefillCase, _prefill_snapshots(one_turn(), alike_engines(), st.just({})), limits())


def spread_cases(*, groups_min: int = 0) -> st.SearchStrategy[SpreadCase]:
    """Any decode queue over any DE groups."""
    return st.builds(SpreadCase, lines(), group_views(min_size=groups_min), rotations())


@st.composite
def tied_spread_cases(draw: st.DrawFn) -> SpreadCase:
    """One turn and several groups of equal tokens."""
    groups = draw(group_views(min_size=2))
    return SpreadCase(
        draw(one_turn()), tuple(group._replace(open_tokens=0, queued_tokens=0) for group in groups), draw(rotations())
    )


def decode_cases() -> st.SearchStrategy[DecodeCase]:
    """Any fetch of a DE group."""
    return st.builds(DecodeCase, _decode_snapshots(lines(), engine_views(loads())), limits())


def idle_decode_cases() -> st.SearchStrategy[DecodeCase]:
    """Turns wait, and the DEs have nothing but free HBM."""
    idle = engine_views(st.just((0, 0, AMPLE_HBM_TOKENS)), min_size=1)
    return st.builds(DecodeCase, _decode_snapshots(long_lines(), idle), limits())


def tied_decode_cases() -> st.SearchStrategy[DecodeCase]:
    """One short turn and several idle DEs with ample HBM."""
    return st.builds(DecodeCase, _decode_snapshots(one_turn(), alike_engines()), limits())


def read_cases() -> st.SearchStrategy[ReadCase]:
    """Any pair, also one whose two engines share a node."""
    node = st.sampled_from(_NODES)
    return st.builds(ReadCase, node, node, read_queues(), st.sampled_from((*_HITS, 1_000_000)), rotations())


@st.composite
def tied_read_cases(draw: st.DrawFn) -> ReadCase:
    """Hits to read, two nodes, queues of equal length."""
    pe_node, de_node = draw(st.permutations(_NODES))[:2]
    tokens = draw(st.sampled_from(_LOADS))
    hit_tokens = draw(st.sampled_from((64, 128)))
    return ReadCase(pe_node, de_node, {pe_node: tokens, de_node: tokens}, hit_tokens, draw(rotations()))


def lines(*, min_size: int = 0) -> st.SearchStrategy[tuple[WaitingTurn, ...]]:
    """A line in order of arrival, turns of 1 to 178 tokens that generate 1 to 3 more."""
    shape = st.tuples(st.sampled_from(_HITS), st.integers(1, 50), st.integers(1, 3))
    return st.lists(shape, min_size=min_size, max_size=TURNS_MAX).map(_turns)


def long_lines() -> st.SearchStrategy[tuple[WaitingTurn, ...]]:
    """At least one turn, some of up to a million tokens."""
    miss = st.one_of(st.integers(1, 50), st.sampled_from((1_000, 300_000, 1_000_000)))
    return st.lists(st.tuples(st.sampled_from(_HITS), miss, st.integers(1, 3)), min_size=1, max_size=TURNS_MAX).map(
        _turns
    )


def one_turn() -> st.SearchStrategy[tuple[WaitingTurn, ...]]:
    """A line of one."""
    return lines(min_size=1).map(lambda line: line[:1])


def loads() -> st.SearchStrategy[tuple[int, int, int]]:
    """Open turns, open tokens, free HBM (below zero: the engine is in debt)."""
    hbm = st.one_of(st.sampled_from((0, 100, -10)), st.integers(0, 600))
    return st.tuples(st.integers(0, 3), st.sampled_from(_LOADS), hbm)


@st.composite
def engine_views(
    draw: st.DrawFn, load: st.SearchStrategy[tuple[int, int, int]], *, min_size: int = 0
) -> tuple[EngineView, ...]:
    """Engines of one group in any order on a few nodes; now and then none of them has any HBM."""
    shape = st.tuples(st.integers(0, NODES_MAX - 1), st.integers(0, RANK_MAX), load)
    shapes = draw(st.lists(shape, unique_by=lambda drawn: drawn[1], min_size=min_size, max_size=ENGINES_MAX))
    no_hbm = draw(st.integers(0, 9)) == 9
    return _views([_Engine(node, rank, n, tok, min(hbm, 0) if no_hbm else hbm) for node, rank, (n, tok, hbm) in shapes])


@st.composite
def alike_engines(draw: st.DrawFn) -> tuple[EngineView, ...]:
    """Two or more idle engines of one node."""
    ranks = draw(st.lists(st.integers(0, RANK_MAX), unique=True, min_size=2, max_size=ENGINES_MAX))
    return _views([_Engine(0, rank, 0, 0, AMPLE_HBM_TOKENS) for rank in ranks])


@st.composite
def group_views(draw: st.DrawFn, *, min_size: int = 0) -> tuple[GroupView, ...]:
    """DE groups in any order; ranks may have gaps."""
    load = st.sampled_from(_LOADS)
    shapes = draw(
        st.lists(
            st.tuples(st.integers(0, RANK_MAX), load, load),
            unique_by=lambda drawn: drawn[0],
            min_size=min_size,
            max_size=GROUPS_MAX,
        )
    )
    return tuple(GroupView(GroupId(f"g{at}"), *shape) for at, shape in enumerate(shapes))


def read_queues() -> st.SearchStrategy[dict[NodeId, int]]:
    """Some nodes have said nothing yet."""
    return st.dictionaries(st.sampled_from(_NODES), st.sampled_from(_LOADS))


def rotations() -> st.SearchStrategy[int]:
    """Fetches so far."""
    return st.one_of(st.integers(0, 5), st.sampled_from((49, 999_983, 10**9)))


def limits() -> st.SearchStrategy[PolicyLimits]:
    """Limits of the size of the loads."""
    return st.builds(
        PolicyLimits,
        alpha_tokens=st.sampled_from(_LOADS),
        beta_tokens=st.sampled_from(_LOADS),
        high_mark_factor=st.sampled_from((1.05, 1.0, 2.0)),
        classify=st.sampled_from(Classify),
    )


def _prefill_snapshots(
    waiting: st.SearchStrategy[tuple[WaitingTurn, ...]],
    engines: st.SearchStrategy[tuple[EngineView, ...]],
    queues: st.SearchStrategy[dict[NodeId, int]] | None = None,
) -> st.SearchStrategy[PrefillSnapshot]:
    return st.builds(PrefillSnapshot, waiting, engines, read_queues() if queues is None else queues, rotations())


def _decode_snapshots(
    waiting: st.SearchStrategy[tuple[WaitingTurn, ...]], engines: st.SearchStrategy[tuple[EngineView, ...]]
) -> st.SearchStrategy[DecodeSnapshot]:
    return st.builds(DecodeSnapshot, waiting, engines, rotations())


def _turns(shapes: Sequence[tuple[int, int, int]]) -> tuple[WaitingTurn, ...]:
    return tuple(
        WaitingTurn(TurnId(f"t{at}"), at, hit, miss, max_new) for at, (hit, miss, max_new) in enumerate(shapes, start=1)
    )


def _views(engines: Sequence[_Engine]) -> tuple[EngineView, ...]:
    """Named by node and by place on it."""
    on_node: Counter[int] = Counter()
    views = []
    for engine in engines:
        engine_id = EngineId(f"{_NODES[engine.node]}/g{on_node[engine.node]}")
        on_node[engine.node] += 1
        views.append(
            EngineView(
                engine_id,
                _NODES[engine.node],
                engine.rank,
                engine.open_turns,
                engine.open_tokens,
                engine.free_hbm_tokens,
            )
        )
    return tuple(views)
