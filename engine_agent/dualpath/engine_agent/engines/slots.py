"""Checks that every engine makes on what it is given."""

from collections.abc import Sequence

from dualpath.engine_agent.ports import ForwardChunk
from dualpath.model.errors import BlockSizeError, Rejected
from dualpath.model.layout import BlockLayout


def check_chunks(chunks: Sequence[ForwardChunk], *, vocab_size: int, tokens_max: int) -> None:
    """raises Rejected for an empty chunk, a token outside the vocabulary, or a context longer than the model takes"""
    for chunk in chunks:
        if not chunk.tokens:
            raise Rejected("a chunk has no tokens, wanted at least 1", field="tokens")
        top = max(chunk.tokens)
        if top >= vocab_size or min(chunk.tokens) < 0:
            raise Rejected(
                f"token {top} is outside the vocabulary of {vocab_size}", field="tokens", reason="VOCABULARY"
            )
        length = chunk.cached + len(chunk.tokens)
        if length > tokens_max:
            raise Rejected(
                f"context of {length} tokens, the model takes {tokens_max}", field="tokens", reason="TOO_LONG"
            )


def check_cached(
    chunks: Sequence[ForwardChunk], cached_kv: Sequence[Sequence[memoryview]], layout: BlockLayout
) -> None:
    """raises BlockSizeError unless every chunk's blocks hold exactly its cached tokens"""
    for chunk, blocks in zip(chunks, cached_kv, strict=True):
        wanted = layout.blocks_for(chunk.cached)
        if len(blocks) != wanted:
            raise BlockSizeError(f"{len(blocks)} layer blocks for {chunk.cached} cached tokens, wanted {wanted}")
        for block in blocks:
            if len(block) != layout.layer_block_bytes:
                raise BlockSizeError(f"layer block has {len(block)} bytes, layout wants {layout.layer_block_bytes}")


def missing_slot(slot: str) -> Rejected:
    return Rejected(f"slot {slot} is not admitted to this engine", field="slot", reason="UNKNOWN_SLOT")
