"""Compute-quota packing of a PE's forward batch (paper §6.2): first in, first out, cut to fit, never zero progress.

Each item is (cached, bsz): tokens that have KV already, tokens to compute now. From these the attention time of the
whole forward, all layers together, is predicted. Items join while the prediction stays within the quota; the one that
would exceed it is cut by binary search to the largest bsz' that fits (chunked prefill), and the rest keeps its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GRANULARITY_TOKENS = 64  # bsz' is a multiple of this and at least this


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Predicted attention seconds of one forward, summed over its layers; coefficients come from profiling.

    per_token_pair_s  per (query token, visible token) pair
    per_token_s       per token computed
    per_item_s        per item of the batch
    """

    per_token_pair_s: float = 0.0
    per_token_s: float = 0.0
    per_item_s: float = 0.0

    def seconds(self, cached: int, bsz: int) -> float:
        """One item: bsz tokens that see `cached` tokens and each other causally."""
        if bsz == 0:
            return 0.0
        pairs = bsz * cached + bsz * (bsz + 1) / 2
        return self.per_item_s + bsz * self.per_token_s + pairs * self.per_token_pair_s


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """A turn's prefill as it stands: `remaining` tokens are to compute, at least 1."""

    turn_id: str
    attempt: int
    cached: int
    remaining: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one forward computes of an item."""

    turn_id: str
    attempt: int
    cached: int
    bsz: int


def pack_batch(
    items: Sequence[PrefillItem], quota_s: float, cost: AttentionCost, *, items_max: int = 256
) -> tuple[Chunk, ...]:
    """The chunks of the next forward: one for each item of a prefix of `items`.

    Only the last chunk may be shorter than its item's remainder. The prediction stays within `quota_s`, but for the
    first item, which always gets min(remaining, GRANULARITY_TOKENS) tokens.
    """
    chunks: list[Chunk] = []
    left_s = quota_s
    for item in items[:items_max]:
        bsz = _fitting(item, left_s, cost)
        if bsz == 0 and not chunks:
            bsz = min(item.remaining, GRANULARITY_TOKENS)
        if bsz == 0:
            break
        chunks.append(Chunk(item.turn_id, item.attempt, item.cached, bsz))
        left_s -= cost.seconds(item.cached, bsz)
        if bsz < item.remaining:
            break
    return tuple(chunks)


def _fitting(item: PrefillItem, left_s: float, cost: AttentionCost) -> int:
    """Largest bsz of the item that costs at most `left_s`: all of it, or a multiple of 64; 0 if none."""
    if cost.seconds(item.cached, item.remaining) <= left_s:
        return item.remaining
    low, high = 0, (item.remaining - 1) // GRANULARITY_TOKENS
    while low < high:  # cost rises with bsz, so the multiples that fit are a prefix
        middle = (low + high + 1) // 2
        if cost.seconds(item.cached, middle * GRANULARITY_TOKENS) <= left_s:
            low = middle
        else:
            high = middle - 1
    return low * GRANULARITY_TOKENS
