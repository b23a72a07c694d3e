"""Snapshots to try a policy on: small numbers that can be checked in the head, many ties, and everything that is rare.

Several nodes with several engines each, ranks with gaps, empty lines, turns without hits, nodes that said nothing,
engines over beta, engines in debt, HBM that fits to the token, rotations from 0 to millions. All shrinks to the left.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
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
from dualpath.simulator.laws.cases import Case, DecodeCase, Function, PrefillCase, ReadCase, SpreadCase

TURNS_MAX = 5
ENGINES_MAX = 4
GROUPS_MAX = 4
NODES_MAX = 3
RANK_MAX = 20
AMPLE_HBM_TOKENS = 100_000_000

# Few distinct values, so that ties and exact limits come up often.
_LOADS = (0, 1, 10, 50, 64, 100, 150, 200)
_HITS = (0, 64, 128)  # whole blocks
_NODES = tuple(NodeId(f"n{at}") for at in range(NODES_MAX))


def any_cases(function: Function) -> st.SearchStrategy[Case]:
    """Whatever this function may be asked."""
    match function:
        case Function.ASSIGN_PREFILL:
            return prefill_cases()
        case Function.SPREAD_TO_GROUPS:
            return spread_cases()
        case Function.ASSIGN_DECODE:
            return decode_cases()
        case Function.CHOOSE_READ_SIDE:
            return read_cases()


def idle_cases(function: Function) -> st.SearchStrategy[Case]:
    """Turns wait and nothing stands in their way; a read always has an answer, so there it is any case."""
    match function:
        case Function.ASSIGN_PREFILL:
            return idle_prefill_cases()
        case Function.SPREAD_TO_GROUPS:
            return idle_spread_cases()
        case Function.ASSIGN_DECODE:
            return idle_decode_cases()
        case Function.CHOOSE_READ_SIDE:
            return read_cases()


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


def spread_cases() -> st.SearchStrategy[SpreadCase]:
    """Any decode queue over any DE groups."""
    return st.builds(SpreadCase, lines(), group_views(), rotations())


def idle_spread_cases() -> st.SearchStrategy[SpreadCase]:
    """Turns wait, and the groups, one at least, have nothing to do."""
    return st.builds(SpreadCase, long_lines(), group_views(st.just(0), min_size=1), rotations())


@st.composite
def decode_cases(draw: st.DrawFn) -> DecodeCase:
    """Any fetch of a DE group; in half of them the HBM is what the first turns need, or one token less."""
    waiting = draw(lines())
    needs = list(accumulate(turn.total_tokens_max for turn in waiting))
    tight = [tokens - less for tokens in needs for less in (0, 1)]
    fits = draw(st.booleans()) and bool(tight)
    engines = draw(engine_views(loads(st.sampled_from(tight) if fits else None)))
    return DecodeCase(DecodeSnapshot(waiting, engines, draw(rotations())), draw(limits()))


@st.composite
def idle_decode_cases(draw: st.DrawFn) -> DecodeCase:
    """Turns wait, the DEs do nothing, and at least one of them has the HBM for the head, often to the token."""
    waiting = draw(long_lines())
    enough = st.sampled_from((waiting[0].total_tokens_max, AMPLE_HBM_TOKENS))
    engines = list(draw(engine_views(st.tuples(st.just(0), st.just(0), st.just(0) | enough), min_size=1)))
    roomy = draw(st.integers(0, len(engines) - 1))
    engines[roomy] = engines[roomy]._replace(free_hbm_tokens=draw(enough))
    return DecodeCase(DecodeSnapshot(waiting, tuple(engines), draw(rotations())), draw(limits()))


def read_cases() -> st.SearchStrategy[ReadCase]:
    """Any pair, also one whose two engines share a node."""
    node = st.sampled_from(_NODES)
    return st.builds(ReadCase, node, node, read_queues(), st.sampled_from((*_HITS, 1_000_000)), rotations())


def lines() -> st.SearchStrategy[tuple[WaitingTurn, ...]]:
    """A line in order of arrival, turns of 1 to 178 tokens that generate 1 to 3 more."""
    shape = st.tuples(st.sampled_from(_HITS), st.integers(1, 50), st.integers(1, 3))
    return st.lists(shape, max_size=TURNS_MAX).map(_turns)


def long_lines() -> st.SearchStrategy[tuple[WaitingTurn, ...]]:
    """At least one turn, some of up to a million tokens."""
    miss = st.one_of(st.integers(1, 50), st.sampled_from((1_000, 300_000, 1_000_000)))
    return st.lists(st.tuples(st.sampled_from(_HITS), miss, st.integers(1, 3)), min_size=1, max_size=TURNS_MAX).map(
        _turns
    )


def loads(hbm: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[tuple[int, int, int]]:
    """Open turns, open tokens, free HBM (below zero: the engine is in debt)."""
    any_hbm = st.one_of(st.sampled_from((0, 100, -10)), st.integers(0, 600))
    return st.tuples(st.integers(0, 3), st.sampled_from(_LOADS), any_hbm if hbm is None else hbm)


@st.composite
def engine_views(
    draw: st.DrawFn, load: st.SearchStrategy[tuple[int, int, int]], *, min_size: int = 0
) -> tuple[EngineView, ...]:
    """Engines of one group in any order on a few nodes, in half of the groups all of one load."""
    places = st.tuples(st.integers(0, NODES_MAX - 1), st.integers(0, RANK_MAX))
    shapes = draw(st.lists(places, unique_by=lambda drawn: drawn[1], min_size=min_size, max_size=ENGINES_MAX))
    alike = draw(load) if draw(st.booleans()) else None
    return _views([_Engine(node, rank, *(draw(load) if alike is None else alike)) for node, rank in shapes])


@st.composite
def group_views(
    draw: st.DrawFn, load: st.SearchStrategy[int] | None = None, *, min_size: int = 0
) -> tuple[GroupView, ...]:
    """DE groups in any order, in half of the cases all of one load; ranks may have gaps."""
    load = st.sampled_from(_LOADS) if load is None else load
    ranks = draw(st.lists(st.integers(0, RANK_MAX), unique=True, min_size=min_size, max_size=GROUPS_MAX))
    tokens = st.tuples(load, load)
    alike = draw(tokens) if draw(st.booleans()) else None
    return tuple(
        GroupView(GroupId(f"g{at}"), rank, *(draw(tokens) if alike is None else alike)) for at, rank in enumerate(ranks)
    )


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
