"""Attention cost and packing, with numbers to check in the head."""

import math

import pytest

from dualpath.engine_agent.batch.quota import AttentionCost, PrefillItem, pack_batch
from dualpath.model.errors import Rejected

ONE_MS_PER_TOKEN = AttentionCost(per_token_s=0.001)


def _item(name: str, *, cached: int = 0, remaining: int) -> PrefillItem:
    return PrefillItem(name, 1, cached, remaining)


def test_the_cost_counts_visible_pairs_tokens_and_items() -> None:
    """3 tokens after 10: they see 11, 12 and 13 tokens, 36 pairs."""
    cost = AttentionCost(per_token_pair_s=1.0, per_token_s=100.0, per_item_s=1_000.0)

    assert cost.seconds(cached=10, bsz=3) == 36 + 300 + 1_000


def test_nothing_to_compute_costs_nothing() -> None:
    assert AttentionCost(per_item_s=1.0).seconds(cached=10, bsz=0) == 0.0


def test_a_quota_that_is_met_exactly_is_not_exceeded() -> None:
    cost = AttentionCost(per_token_s=0.125)

    chunks = pack_batch([_item("a", remaining=8), _item("b", remaining=8)], 2.0, cost)

    assert [(c.turn_id, c.bsz) for c in chunks] == [("a", 8), ("b", 8)]


def test_an_empty_line_gives_an_empty_batch() -> None:
    assert pack_batch([], 0.3, ONE_MS_PER_TOKEN) == ()


def test_a_remainder_shorter_than_the_granularity_goes_whole() -> None:
    chunks = pack_batch([_item("a", remaining=70)], 0.064, ONE_MS_PER_TOKEN)
    rest = pack_batch([_item("a", cached=64, remaining=6)], 0.064, ONE_MS_PER_TOKEN)

    assert [c.bsz for c in chunks] == [64]
    assert [(c.cached, c.bsz) for c in rest] == [(64, 6)]


def test_a_free_cost_model_takes_the_whole_line() -> None:
    items = [_item(f"t{i}", remaining=10_000) for i in range(5)]

    assert len(pack_batch(items, 1e-9, AttentionCost())) == 5


@pytest.mark.parametrize("field", ["per_token_pair_s", "per_token_s", "per_item_s"])
@pytest.mark.parametrize("found", [-1e-9, math.nan, math.inf])
def test_a_cost_that_could_fall_is_rejected(field: str, found: float) -> None:
    with pytest.raises(Rejected, match=f"{field} is {found}, wanted at least 0 and finite"):
        AttentionCost(**{field: found})


@pytest.mark.parametrize("quota_s", [0.0, -1.0, math.nan])
def test_an_impossible_quota_is_rejected(quota_s: float) -> None:
    with pytest.raises(Rejected, match=f"quota_s is {quota_s}, wanted more than 0"):
        pack_batch([_item("a", remaining=1)], quota_s, ONE_MS_PER_TOKEN)


def test_bounds_that_allow_nothing_are_rejected() -> None:
    items = [_item("a", remaining=1)]

    with pytest.raises(Rejected, match="items_max is 0, wanted at least 1"):
        pack_batch(items, 0.3, ONE_MS_PER_TOKEN, items_max=0)
    with pytest.raises(Rejected, match="granularity_tokens is 0, wanted at least 1"):
        pack_batch(items, 0.3, ONE_MS_PER_TOKEN, granularity_tokens=0)


def test_an_item_without_work_is_rejected() -> None:
    with pytest.raises(Rejected, match="remaining of a is 0, wanted at least 1"):
        _item("a", remaining=0)
    with pytest.raises(Rejected, match="cached of a is -1, wanted at least 0"):
        _item("a", cached=-1, remaining=1)
