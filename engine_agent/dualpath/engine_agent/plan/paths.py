"""The two read paths of Fig. 4 (paper §4.1) as data: what is read where, and what crosses the compute network.

    PE read path   storage -> PE buffer (1,2); per layer: PE buffer -> PE HBM (3,4), compute,
                   KV of ALL prompt tokens PE HBM -> DE buffer (5-7)
    DE read path   storage -> DE buffer (1,2); per layer: hit KV DE buffer -> PE HBM (3-5), compute,
                   KV of the miss tokens only PE HBM -> DE buffer (6,7)

Both end alike: the DE buffer holds the KV of the whole prompt, the DE copies it to HBM (8,9) and frees the buffer.
"""

from dataclasses import dataclass
from enum import StrEnum

from dualpath.model.layout import BlockLayout
from dualpath.model.turn import ReadSide


class HitSource(StrEnum):
    """Where a PE's attention finds the hit KV of a layer."""

    NONE = "none"  # the turn has no hit tokens
    PE_BUFFER = "pe_buffer"
    DE_BUFFER = "de_buffer"


@dataclass(frozen=True, slots=True)
class ReadPath:
    """One turn's way: `sent_from` is the first prompt token whose KV the PE must send to the DE buffer."""

    source: HitSource
    hit_tokens: int
    prompt_tokens: int
    sent_from: int

    @property
    def storage_tokens(self) -> int:
        """Tokens read from storage, once, on one side."""
        return self.hit_tokens

    @property
    def tokens_to_pe(self) -> int:
        """Tokens whose KV crosses DE -> PE."""
        return self.hit_tokens if self.source is HitSource.DE_BUFFER else 0

    @property
    def tokens_to_de(self) -> int:
        """Tokens whose KV crosses PE -> DE."""
        return self.prompt_tokens - self.sent_from


def read_path(read_side: ReadSide, *, hit_tokens: int, prompt_tokens: int) -> ReadPath:
    """The way of a turn whose hit KV is read on `read_side`."""
    if hit_tokens == 0:
        return ReadPath(HitSource.NONE, 0, prompt_tokens, sent_from=0)
    if read_side is ReadSide.PE:
        return ReadPath(HitSource.PE_BUFFER, hit_tokens, prompt_tokens, sent_from=0)
    return ReadPath(HitSource.DE_BUFFER, hit_tokens, prompt_tokens, sent_from=hit_tokens)


@dataclass(frozen=True, slots=True)
class Step:
    """One arrow of Fig. 4. `per_layer` steps repeat for each layer; `tokens` is per repetition."""

    labels: str
    origin: str
    target: str
    tokens: int
    per_layer: bool


def steps_of(path: ReadPath) -> tuple[Step, ...]:
    """The arrows a turn takes, in order; arrows that would carry nothing are left out."""
    if path.source is HitSource.DE_BUFFER:
        arrows = (
            Step("1,2", "storage", "de_buffer", path.hit_tokens, per_layer=False),
            Step("3-5", "de_buffer", "pe_hbm", path.hit_tokens, per_layer=True),
            Step("6,7", "pe_hbm", "de_buffer", path.tokens_to_de, per_layer=True),
        )
    else:
        arrows = (
            Step("1,2", "storage", "pe_buffer", path.hit_tokens, per_layer=False),
            Step("3,4", "pe_buffer", "pe_hbm", path.hit_tokens, per_layer=True),
            Step("5-7", "pe_hbm", "de_buffer", path.tokens_to_de, per_layer=True),
        )
    last = Step("8,9", "de_buffer", "de_hbm", path.prompt_tokens, per_layer=False)
    return tuple(step for step in (*arrows, last) if step.tokens)


def layer_pieces(layout: BlockLayout, *, layer: int, first: int, tokens: int) -> tuple[tuple[int, int], ...]:
    """Byte ranges of one layer's KV of tokens [first, first + tokens) in a region of full blocks laid end to end.

    return  (offset, length) per block touched, in token order; block b of layer l starts at
            (b * num_layers + l) * layer_block_bytes
    """
    pieces = []
    token, end = first, first + tokens
    while token < end:
        block, inside = divmod(token, layout.block_tokens)
        count = min(layout.block_tokens - inside, end - token)
        offset = (block * layout.num_layers + layer) * layout.layer_block_bytes + inside * layout.bytes_per_token_layer
        pieces.append((offset, count * layout.bytes_per_token_layer))
        token += count
    return tuple(pieces)
