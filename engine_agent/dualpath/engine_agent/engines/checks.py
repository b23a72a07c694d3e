"""What every engine refuses before it changes anything, with one wording for all of them."""

from collections.abc import Sequence

from dualpath.engine_agent.ports import ForwardChunk
from dualpath.model.errors import BlockSizeError, Rejected
from dualpath.model.layout import BlockLayout


def check_chunks(chunks: Sequence[ForwardChunk], *, vocab_size: int, tokens_max: int) -> None:
    """raises Rejected for no chunks, empty ones, tokens outside the vocabulary, or a context the model does not take"""
    if not chunks:
        raise Rejected("a forward has no chunks, wanted at least 1", field="chunks")
    for chunk in chunks:
        if not chunk.tokens:
            raise Rejected("a chunk has no tokens, wanted at least 1", field="tokens")
        if chunk.cached < 0:
            raise Rejected(f"a chunk has {chunk.cached} cached tokens, wanted at least 0", field="cached")
        check_tokens(chunk.tokens, vocab_size=vocab_size)
        length = chunk.cached + len(chunk.tokens)
        if length > tokens_max:
            raise _too_long(length, tokens_max, field="tokens")


def check_tokens(tokens: Sequence[int], *, vocab_size: int) -> None:
    """raises Rejected for the first kind of token that is not in the vocabulary"""
    if not tokens:
        return
    lowest, highest = min(tokens), max(tokens)
    if lowest < 0 or highest >= vocab_size:
        found = lowest if lowest < 0 else highest
        message = f"token {found} is outside the vocabulary of {vocab_size}"
        raise Rejected(message, field="tokens", reason="VOCABULARY")


def check_layer(layer: int, *, wanted: int, num_layers: int) -> None:
    """raises Rejected unless `layer` is the one that comes next"""
    if wanted >= num_layers:
        raise Rejected(f"layer {layer} asked for, all {num_layers} are computed", field="layer", reason="LAYER_ORDER")
    if layer != wanted:
        raise Rejected(f"layer {layer} asked for, wanted {wanted}", field="layer", reason="LAYER_ORDER")


def check_cached(
    chunks: Sequence[ForwardChunk], cached_kv: Sequence[Sequence[memoryview]], layout: BlockLayout
) -> None:
    """raises Rejected or BlockSizeError unless there are blocks for each chunk that hold exactly its cached tokens"""
    if len(cached_kv) != len(chunks):
        raise Rejected(f"cached KV of {len(cached_kv)} chunks, wanted {len(chunks)}", field="cached_kv")
    for chunk, blocks in zip(chunks, cached_kv, strict=True):
        wanted = layout.blocks_for(chunk.cached)
        if len(blocks) != wanted:
            raise BlockSizeError(f"{len(blocks)} layer blocks for {chunk.cached} cached tokens, wanted {wanted}")
        for block in blocks:
            if block.nbytes != layout.layer_block_bytes:
                raise BlockSizeError(f"layer block has {block.nbytes} bytes, layout wants {layout.layer_block_bytes}")


def check_prompt_blocks(blocks: Sequence[memoryview], tokens: int, layout: BlockLayout) -> None:
    """raises BlockSizeError unless these full blocks hold exactly `tokens` tokens"""
    wanted = layout.blocks_for(tokens)
    if len(blocks) != wanted:
        raise BlockSizeError(f"{len(blocks)} blocks for {tokens} tokens, wanted {wanted}")
    for block in blocks:
        check_full_block(block, layout)


def check_full_block(block: memoryview, layout: BlockLayout) -> None:
    """raises BlockSizeError unless `block` has the bytes of one full block"""
    if block.nbytes != layout.full_block_bytes:
        raise BlockSizeError(f"block has {block.nbytes} bytes, layout wants {layout.full_block_bytes}")


def check_room(tokens: int, slot_tokens_max: int, *, tokens_max: int) -> None:
    """raises Rejected unless a prompt of `tokens` leaves room in the slot, and the slot fits the model"""
    if tokens < 1:
        raise Rejected(f"prompt has {tokens} tokens, wanted at least 1", field="tokens")
    if slot_tokens_max > tokens_max:
        raise _too_long(slot_tokens_max, tokens_max, field="tokens_max")
    if tokens >= slot_tokens_max:
        message = f"slot for {slot_tokens_max} tokens, the prompt has {tokens}: no room to decode"
        raise Rejected(message, field="tokens_max", reason="SLOT_FULL")


def check_index(index: int, kv_tokens: int, layout: BlockLayout) -> None:
    """raises Rejected unless all tokens of block `index` have KV"""
    whole = layout.full_blocks_in(kv_tokens)
    if not 0 <= index < whole:
        message = f"block {index} asked for, {kv_tokens} tokens with KV are {whole} whole blocks"
        raise Rejected(message, field="index", reason="BLOCK_NOT_FULL")


def _too_long(found: int, tokens_max: int, *, field: str) -> Rejected:
    message = f"context of {found} tokens, the model takes {tokens_max}"
    return Rejected(message, field=field, reason="TOO_LONG", precondition=True)
