"""Compute-quota packing of a PE's forward batch (paper §6.2): first in, first out, cut to fit, never zero progress.

Each item is (cached, bsz): tokens that have KV already, tokens to compute now. From these the attention time of the
whole forward, all layers together, is predicted. Items join while the prediction stays within the quota; the one that
would exceed it is cut by binary search to the largest bsz' that fits (chunked prefill), and the rest keeps its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from dualpath.model.errors import Rejected

GRANULARITY_TOKENS = 64  # bsz' is a multiple of this and at least this
PROGRESS_SLACK = 1.25  # what the first chunk may cost of the smallest one, where that exceeds the quota


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Predicted attention seconds of one forward, summed over its layers; coefficients come from profiling.

    per_token_pair_s  per (query token, visible token) pair
    per_token_s       per token computed
    per_item_s        per item of the batch
    per_visible_token_s  per token whose KV the item sees, cached or computed now: loading it layer by layer
    """

    per_token_pair_s: float = 0.0
    per_token_s: float = 0.0
    per_item_s: float = 0.0
    per_visible_token_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):  # a cost that falls with bsz would mislead the binary search
            found = getattr(self, field.name)
            if not 0.0 <= found < float("inf"):
                raise Rejected(f"{field.name} is {found}, wanted at least 0 and finite", field=field.name)

    def seconds(self, cached: int, bsz: int) -> float:
        """One item: bsz tokens that see `cached` tokens and each other causally."""
        if bsz == 0:
            return 0.0
        pairs = bsz * cached + bsz * (bsz + 1) / 2
        return (
            self.per_item_s
            + bsz * self.per_token_s
            + pairs * self.per_token_pair_s
            + (cached + bsz) * self.per_visible_token_s
        )


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """A turn's prefill as it stands: `remaining` tokens are to compute, at least 1."""

    turn_id: str
    attempt: int
    cached: int
    remaining: int

    def __post_init__(self) -> None:
        if self.cached < 0:
            raise Rejected(f"cached of {self.turn_id} is {self.cached}, wanted at least 0", field="cached")
        if self.remaining < 1:  # at the head it would block the line for ever
            raise Rejected(f"remaining of {self.turn_id} is {self.remaining}, wanted at least 1", field="remaining")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one forward computes of an item."""

    turn_id: str
    attempt: int
    cached: int
    bsz: int


def pack_batch(
    items: Sequence[PrefillItem],
    quota_s: float,
    cost: AttentionCost,
    *,
    granularity_tokens: int = GRANULARITY_TOKENS,
    items_max: int = 256,
) -> tuple[Chunk, ...]:
    """The chunks of the next forward: one for each item of a prefix of `items`.

    Only the last chunk may be shorter than its item's remainder. The prediction stays within `quota_s`, but for the
    first item, which always gets at least min(remaining, granularity_tokens) tokens.

    raises  Rejected for bounds under which nothing would ever be computed
    """
    _check_bounds(quota_s, granularity_tokens, items_max)
    chunks: list[Chunk] = []
    spent_s = 0.0  # summed up, not subtracted from the quota: the sum of the chunks is then exactly what was compared
    for item in items[:items_max]:
        bsz = cut_to_fit(item, spent_s, quota_s, cost, granularity_tokens=granularity_tokens)
        if bsz == 0 and not chunks:
            bsz = cut_to_progress(item, cost, granularity_tokens=granularity_tokens)
        if bsz == 0:
            break
        chunks.append(Chunk(item.turn_id, item.attempt, item.cached, bsz))
        spent_s += cost.seconds(item.cached, bsz)
        if bsz < item.remaining:
            break
    return tuple(chunks)


def _check_bounds(quota_s: float, granularity_tokens: int, items_max: int) -> None:
    if not quota_s > 0.0:
        raise Rejected(f"quota_s is {quota_s}, wanted more than 0", field="quota_s")
    if granularity_tokens < 1:
        raise Rejected(f"granularity_tokens is {granularity_tokens}, wanted at least 1", field="granularity_tokens")
    if items_max < 1:
        raise Rejected(f"items_max is {items_max}, wanted at least 1", field="items_max")


def cut_to_fit(
    item: PrefillItem,
    spent_s: float,
    quota_s: float,
    cost: AttentionCost,
    *,
    granularity_tokens: int = GRANULARITY_TOKENS,
) -> int:
    """Largest bsz of the item that the rest of the quota allows: all of it, or whole granules; 0 if none."""

    def fits(bsz: int) -> bool:
        return spent_s + cost.seconds(item.cached, bsz) <= quota_s

    if fits(item.remaining):
        return item.remaining
    low, high = 0, (item.remaining - 1) // granularity_tokens
    while low < high:  # cost rises with bsz, so the granules that fit are a prefix
        middle = (low + high + 1) // 2
        if fits(middle * granularity_tokens):
            low = middle
        else:
            high = middle - 1
    return low * granularity_tokens


def cut_to_progress(item: PrefillItem, cost: AttentionCost, *, granularity_tokens: int = GRANULARITY_TOKENS) -> int:
    """bsz of a head whose smallest chunk exceeds the quota already: as much as costs at most PROGRESS_SLACK of that.

    The context is loaded for every chunk. Cut to the smallest ones, a long context would be loaded over and over.
    """
    smallest = min(item.remaining, granularity_tokens)
    bound_s = PROGRESS_SLACK * cost.seconds(item.cached, smallest)
    return max(smallest, cut_to_fit(item, 0.0, bound_s, cost, granularity_tokens=granularity_tokens))
