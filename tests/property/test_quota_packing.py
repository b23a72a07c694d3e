"""Laws of compute-quota packing, over random lines of prefills and cost models."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dualpath.engine_agent.batch.quota import (
    GRANULARITY_TOKENS,
    PROGRESS_SLACK,
    AttentionCost,
    Chunk,
    PrefillItem,
    pack_batch,
)
from strategies import attention_costs, examples, prefill_items

laws = examples(0.5)

quotas_s = st.sampled_from((1e-4, 0.01, 0.3, 2.0, 1e3))
granularities = st.sampled_from((1, 16, GRANULARITY_TOKENS))


def _seconds(chunks: tuple[Chunk, ...], cost: AttentionCost) -> float:
    total = 0.0
    for chunk in chunks:
        total += cost.seconds(chunk.cached, chunk.bsz)
    return total


def _is_floor(chunk: Chunk, item: PrefillItem, cost: AttentionCost) -> bool:
    """The smallest chunk, or more of it for at most PROGRESS_SLACK of its cost."""
    smallest = min(item.remaining, GRANULARITY_TOKENS)
    slack_s = PROGRESS_SLACK * cost.seconds(item.cached, smallest)
    return chunk.bsz == smallest or (chunk.bsz > smallest and cost.seconds(chunk.cached, chunk.bsz) <= slack_s)


@laws
@given(prefill_items(), quotas_s, attention_costs())
def test_the_quota_is_never_exceeded_but_for_the_floor_of_the_first_item(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost
) -> None:
    chunks = pack_batch(items, quota_s, cost)

    if _seconds(chunks, cost) > quota_s:
        assert len(chunks) == 1
        assert _is_floor(chunks[0], items[0], cost)


@laws
@given(prefill_items(), quotas_s, attention_costs())
def test_a_batch_covers_a_prefix_of_the_line_and_cuts_only_its_last_item(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost
) -> None:
    chunks = pack_batch(items, quota_s, cost)

    taken = items[: len(chunks)]
    assert [(c.turn_id, c.attempt, c.cached) for c in chunks] == [(i.turn_id, i.attempt, i.cached) for i in taken]
    assert all(chunk.bsz == item.remaining for chunk, item in zip(chunks[:-1], taken[:-1], strict=True))
    assert all(1 <= chunk.bsz <= item.remaining for chunk, item in zip(chunks, taken, strict=True))


@laws
@given(prefill_items(min_size=3), st.integers(0, 100), attention_costs())
def test_a_quota_that_ends_inside_the_line_is_never_exceeded(
    items: tuple[PrefillItem, ...], percent: int, cost: AttentionCost
) -> None:
    """The quota is a share of what the whole line costs, so that it ends anywhere in it."""
    line_s = _seconds(tuple(Chunk(item.turn_id, 1, item.cached, item.remaining) for item in items), cost)
    quota_s = max(line_s * percent / 100, 1e-9)

    chunks = pack_batch(items, quota_s, cost)

    assert _seconds(chunks, cost) <= quota_s or (len(chunks) == 1 and _is_floor(chunks[0], items[0], cost))


@laws
@given(prefill_items(), quotas_s, attention_costs(), granularities)
def test_a_cut_item_gets_whole_granules(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost, granularity: int
) -> None:
    for chunk, item in zip(pack_batch(items, quota_s, cost, granularity_tokens=granularity), items, strict=False):
        assert chunk.bsz == item.remaining or chunk.bsz % granularity == 0


@laws
@given(prefill_items(min_size=1), quotas_s, attention_costs(), granularities)
def test_a_line_with_work_always_makes_progress(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost, granularity: int
) -> None:
    chunks = pack_batch(items, quota_s, cost, granularity_tokens=granularity)

    assert chunks[0].bsz >= min(granularity, items[0].remaining)


@laws
@given(prefill_items(min_size=1), quotas_s, attention_costs(), granularities)
def test_no_granule_more_would_fit(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost, granularity: int
) -> None:
    """The answer of the binary search against a try of the next step."""
    chunks = pack_batch(items, quota_s, cost, granularity_tokens=granularity)

    cut = chunks[-1].bsz < items[len(chunks) - 1].remaining
    if not cut and len(chunks) == len(items):
        return
    at, done, kept = (len(chunks) - 1, chunks[-1].bsz, chunks[:-1]) if cut else (len(chunks), 0, chunks)
    more = min(done + granularity, items[at].remaining)
    assert _seconds((*kept, Chunk(items[at].turn_id, 1, items[at].cached, more)), cost) > quota_s


@laws
@given(prefill_items(), attention_costs(), quotas_s, quotas_s)
def test_a_larger_quota_never_computes_less(
    items: tuple[PrefillItem, ...], cost: AttentionCost, one_s: float, other_s: float
) -> None:
    smaller, larger = (sum(chunk.bsz for chunk in pack_batch(items, q, cost)) for q in sorted((one_s, other_s)))

    assert smaller <= larger


@laws
@given(prefill_items(), quotas_s, attention_costs(), st.integers(1, 5))
def test_a_batch_has_at_most_items_max_items(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost, items_max: int
) -> None:
    assert len(pack_batch(items, quota_s, cost, items_max=items_max)) <= items_max


@examples(0.3)
@given(prefill_items(max_size=5), st.sampled_from((0.01, 0.3, 2.0)), attention_costs())
def test_forward_after_forward_the_line_empties_in_its_order(
    items: tuple[PrefillItem, ...], quota_s: float, cost: AttentionCost
) -> None:
    line, ended = list(items), []
    forwards_max = sum(math.ceil(item.remaining / GRANULARITY_TOKENS) + 1 for item in items)

    for _ in range(forwards_max):
        for chunk in pack_batch(line, quota_s, cost):
            index = next(i for i, item in enumerate(line) if item.turn_id == chunk.turn_id)
            rest = line[index].remaining - chunk.bsz
            if rest:
                line[index] = PrefillItem(chunk.turn_id, 1, chunk.cached + chunk.bsz, rest)
            else:
                ended.append(line.pop(index).turn_id)

    assert ended == [item.turn_id for item in items]


@laws
@given(attention_costs(), st.integers(0, 5_000), st.lists(st.integers(0, 5_000), min_size=2, max_size=8))
def test_the_predicted_time_never_falls_with_more_tokens(cost: AttentionCost, cached: int, sizes: list[int]) -> None:
    seconds = [cost.seconds(cached, bsz) for bsz in sorted(sizes)]

    assert all(before <= after for before, after in pairwise(seconds))
