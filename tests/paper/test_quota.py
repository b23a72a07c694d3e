"""The compute quota as the paper states it (§6.2), with a cost of 1 ms per token so that 300 ms are 300 tokens."""

import pytest

from dualpath.engine_agent.batch.quota import AttentionCost, Chunk, PrefillItem, pack_batch

MS_PER_TOKEN = AttentionCost(per_token_s=0.001)
QUOTA_S = 0.3


def test_items_are_added_first_in_first_out_while_the_prediction_fits() -> None:
    """§6.2: items join in order while the predicted time stays within the quota."""
    assert _sizes(pack_batch(_line(100, 100, 90), QUOTA_S, MS_PER_TOKEN)) == [100, 100, 90]


def test_the_item_that_would_exceed_the_quota_is_cut() -> None:
    """§6.2: chunked prefill: 100 of 300 tokens are left, the largest multiple of 64 in it is 64."""
    assert _sizes(pack_batch(_line(200, 500), QUOTA_S, MS_PER_TOKEN)) == [200, 64]


def test_the_prediction_is_that_of_the_whole_forward() -> None:
    """§6.2: all items together: after 100 + 100 only 100 of the 300 ms are left for the third."""
    assert _sizes(pack_batch(_line(100, 100, 200), QUOTA_S, MS_PER_TOKEN)) == [100, 100, 64]


def test_the_cut_is_the_largest_that_fits() -> None:
    """§6.2: binary search for bsz': 256 tokens fit 300 ms, 320 do not."""
    assert _sizes(pack_batch(_line(10_000), QUOTA_S, MS_PER_TOKEN)) == [256]


def test_what_is_cut_off_stays_at_the_head() -> None:
    """§6.2: nothing behind a cut item joins, even if it would fit."""
    assert _sizes(pack_batch(_line(200, 500, 1), QUOTA_S, MS_PER_TOKEN)) == [200, 64]


def test_a_shorter_item_does_not_pass_one_that_does_not_fit_at_all() -> None:
    """§6.2: first in, first out: 20 tokens are left, less than 64; the item of 5 waits behind."""
    assert _sizes(pack_batch(_line(280, 100, 5), QUOTA_S, MS_PER_TOKEN)) == [280]


def test_a_batch_is_never_empty() -> None:
    """§6.2, our reading: at least 64 tokens of the head, whatever they cost."""
    dear = AttentionCost(per_token_s=1.0)

    assert _sizes(pack_batch(_line(500, 500), QUOTA_S, dear)) == [64]
    assert _sizes(pack_batch(_line(30, 500), QUOTA_S, dear)) == [30]


def test_cached_tokens_cost_attention_too() -> None:
    """§6.2: an item is (cached, bsz); the same 64 tokens after a long context take more of the quota."""
    cost = AttentionCost(per_token_pair_s=1e-6)
    fresh, late = (pack_batch([PrefillItem("t1", 1, cached, 10_000)], QUOTA_S, cost)[0].bsz for cached in (0, 32_768))

    assert fresh == 768  # 768 x 769 / 2 = 295,296 pairs of the 300,000
    assert late == 64  # 64 x 32,768 pairs are over the quota: the floor


def test_chunks_of_one_turn_cost_as_much_attention_as_the_whole() -> None:
    """§6.2: cutting moves work to later forwards, it adds none: pairs of 0..640 = sum over its chunks."""
    cost = AttentionCost(per_token_pair_s=1e-6)

    chunks = sum(cost.seconds(cached, 64) for cached in range(0, 640, 64))

    assert chunks == pytest.approx(cost.seconds(0, 640))


def _line(*remaining: int) -> list[PrefillItem]:
    return [PrefillItem(f"t{n}", 1, 0, tokens) for n, tokens in enumerate(remaining, start=1)]


def _sizes(chunks: tuple[Chunk, ...]) -> list[int]:
    return [chunk.bsz for chunk in chunks]


def test_a_context_that_exceeds_the_quota_alone_is_not_loaded_once_per_granule() -> None:
    cost = AttentionCost(per_visible_token_s=3e-6)
    item = PrefillItem("t1", 1, 128_000, 700)

    assert pack_batch([item], QUOTA_S, cost)[0].bsz == 700
