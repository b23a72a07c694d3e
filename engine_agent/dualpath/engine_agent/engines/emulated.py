"""The emulated engine: a cost model for time, real bytes for KV.

The KV row of a token in a layer is made of its token id, its position and the layer, so that what storage and network
move can be checked: a missing, swapped or stale block is noticed at once (Broken, KV_MISMATCH). The next token is a
function of all token ids before it, read from the KV of layer 0; so wrong KV cannot give right tokens either.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dualpath.engine_agent.engines.slots import check_cached, check_chunks, missing_slot
from dualpath.engine_agent.ports import ForwardChunk, Sampled, Verdict
from dualpath.model.errors import BlockSizeError, Broken, Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

Words = npt.NDArray[np.uint32]
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class EmulatedCost:
    """Seconds that compute takes; the engine sleeps them.

    prefill_s_per_token       per new token, over all layers
    prefill_s_per_token_pair  per (new token, visible token), over all layers
    prefill_s_per_forward     fixed part of one forward
    decode_s_per_step, decode_s_per_turn   one decode step = the first + batch x the second
    """

    prefill_s_per_token: float = 2e-5
    prefill_s_per_token_pair: float = 0.0
    prefill_s_per_forward: float = 0.002
    decode_s_per_step: float = 0.002
    decode_s_per_turn: float = 0.0002


@dataclass(slots=True, eq=False)
class EmulatedForward:
    chunks: tuple[ForwardChunk, ...]
    next_layer: int = 0
    sampled: list[Sampled | None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Slot:
    kv: Words  # [num_layers, tokens_max, words per row]
    tokens: int
    last_token: int
    state: int  # rolling hash over the ids of tokens with KV


@dataclass(eq=False)
class EmulatedEngine:
    """Same calls as a real engine, chosen KV size, chosen speed."""

    layout: BlockLayout
    cost: EmulatedCost = EmulatedCost()
    vocab_size: int = 32_000
    tokens_max: int = 1 << 20
    model_name: str = "emulated"
    model_revision: str = "1"
    dtype: str = "bytes"
    sleep: Callable[[float], None] = time.sleep
    _slots: dict[str, _Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout.bytes_per_token_layer % WORD_BYTES:
            message = f"bytes_per_token_layer is {self.layout.bytes_per_token_layer}, wanted a multiple of {WORD_BYTES}"
            raise Rejected(message, field="bytes_per_token_layer", reason="LAYOUT")
        self._words = self.layout.bytes_per_token_layer // WORD_BYTES

    # prefill

    def begin_forward(self, chunks: Sequence[ForwardChunk]) -> EmulatedForward:
        check_chunks(chunks, vocab_size=self.vocab_size, tokens_max=self.tokens_max)
        return EmulatedForward(tuple(chunks))

    def forward_layer(
        self, forward: EmulatedForward, layer: int, cached_kv: Sequence[Sequence[memoryview]]
    ) -> list[memoryview]:
        if layer != forward.next_layer:
            raise Rejected(f"layer {layer} asked for, wanted {forward.next_layer}", field="layer")
        check_cached(forward.chunks, cached_kv, self.layout)
        out = []
        for chunk, blocks in zip(forward.chunks, cached_kv, strict=True):
            ids = self._checked_ids(blocks, chunk.cached, layer)
            new = self._rows(np.asarray(chunk.tokens, np.uint32), chunk.cached, layer)
            out.append(new.data.cast("B"))
            if layer == 0:
                state = _fold(_fold(0, ids), np.asarray(chunk.tokens, np.uint32))
                forward.sampled.append(Sampled(self._next(state)) if chunk.is_last else None)
        self.sleep(self._layer_s(forward.chunks))
        forward.next_layer += 1
        return out

    def end_forward(self, forward: EmulatedForward) -> list[Sampled | None]:
        if forward.next_layer < self.layout.num_layers:
            return [None] * len(forward.chunks)  # given up on the way
        return forward.sampled

    # decode

    def admit(self, slot: str, blocks: Sequence[memoryview], tokens: int, tokens_max: int, first_token: int) -> None:
        if len(blocks) != self.layout.blocks_for(tokens) or any(
            len(block) != self.layout.full_block_bytes for block in blocks
        ):
            wanted = f"{self.layout.blocks_for(tokens)} of {self.layout.full_block_bytes} bytes"
            raise BlockSizeError(f"{len(blocks)} blocks for {tokens} tokens, wanted {wanted}")
        kv = np.empty((self.layout.num_layers, tokens_max, self._words), np.uint32)
        ids = np.empty(0, np.uint32)
        for layer in range(self.layout.num_layers):
            size = self.layout.layer_block_bytes
            layer_blocks = [block[layer * size : (layer + 1) * size] for block in blocks]
            ids = self._checked_ids(layer_blocks, tokens, layer)
            kv[layer, :tokens] = self._gather(layer_blocks, tokens)
        self._slots[slot] = _Slot(kv, tokens, first_token, _fold(0, ids))

    def decode_step(self, slots: Sequence[str]) -> list[Sampled]:
        entries = [self._slot(slot) for slot in slots]
        self.sleep(self.cost.decode_s_per_step + len(entries) * self.cost.decode_s_per_turn)
        sampled = []
        for entry in entries:
            token = np.asarray([entry.last_token], np.uint32)
            for layer in range(self.layout.num_layers):
                entry.kv[layer, entry.tokens] = self._rows(token, entry.tokens, layer)[0]
            entry.state = _fold(entry.state, token)
            entry.tokens += 1
            entry.last_token = self._next(entry.state)
            sampled.append(Sampled(entry.last_token))
        return sampled

    def kv_tokens(self, slot: str) -> int:
        return self._slot(slot).tokens

    def copy_block(self, slot: str, index: int, into: memoryview) -> None:
        entry, layout = self._slot(slot), self.layout
        start, end = index * layout.block_tokens, (index + 1) * layout.block_tokens
        if end > entry.tokens:
            raise Rejected(f"block {index} ends at token {end}, {entry.tokens} tokens have KV", field="index")
        if len(into) != layout.full_block_bytes:
            raise BlockSizeError(f"memory has {len(into)} bytes, layout wants {layout.full_block_bytes}")
        np.frombuffer(into, np.uint32).reshape(layout.num_layers, BLOCK_TOKENS, -1)[:] = entry.kv[:, start:end]

    def release(self, slot: str) -> None:
        self._slots.pop(slot, None)

    # oracle

    def verify(self, prompt: Sequence[int], generated: Sequence[int]) -> Verdict:
        """Recompute each token from the ids before it alone."""
        state = _fold(0, np.asarray(prompt, np.uint32))
        for index, token in enumerate(generated):
            if self._next(state) != token:
                return Verdict(False, len(generated), index, 1.0)
            state = _fold(state, np.asarray([token], np.uint32))
        return Verdict(True, len(generated), None, 1.0)

    # bytes

    def _rows(self, ids: Words, first: int, layer: int) -> Words:
        """KV rows [len(ids), words] of tokens at positions first, ...: word 0 is the id, the others mix all three."""
        base = self._base(ids, first, layer)
        rows = base[:, None] + np.arange(self._words, dtype=np.uint32)[None, :]
        rows[:, 0] = ids
        return rows

    def _base(self, ids: Words, first: int, layer: int) -> Words:
        positions = np.arange(first, first + len(ids), dtype=np.uint32)
        return ids * np.uint32(2654435761) ^ positions * np.uint32(40503) ^ np.uint32(layer * 0x01000193 & 0xFFFFFFFF)

    def _checked_ids(self, blocks: Sequence[memoryview], tokens: int, layer: int) -> Words:
        """The ids in one layer's blocks, after comparing first and last words of every row with what they must be."""
        ids = np.empty(tokens, np.uint32)
        for index, block in enumerate(blocks):
            start = index * BLOCK_TOKENS
            rows = np.frombuffer(block, np.uint32).reshape(BLOCK_TOKENS, self._words)[: tokens - start]
            ids[start : start + len(rows)] = rows[:, 0]
            if self._words == 1:
                continue
            base = self._base(rows[:, 0], start, layer)
            if not (
                np.array_equal(rows[:, 1], base + np.uint32(1))
                and np.array_equal(rows[:, -1], base + np.uint32(self._words - 1))
            ):
                message = f"KV of layer {layer}, tokens {start} to {start + len(rows) - 1} is not what was computed"
                raise Broken(message, reason="KV_MISMATCH")
        return ids

    def _gather(self, blocks: Sequence[memoryview], tokens: int) -> Words:
        rows = np.concatenate([np.frombuffer(block, np.uint32).reshape(BLOCK_TOKENS, -1) for block in blocks])
        return rows[:tokens]

    def _next(self, state: int) -> int:
        return (state ^ (state >> 29)) % self.vocab_size

    def _layer_s(self, chunks: Sequence[ForwardChunk]) -> float:
        cost = self.cost
        total = cost.prefill_s_per_forward
        for chunk in chunks:
            new = len(chunk.tokens)
            pairs = new * chunk.cached + new * (new + 1) / 2
            total += new * cost.prefill_s_per_token + pairs * cost.prefill_s_per_token_pair
        return total / self.layout.num_layers

    def _slot(self, slot: str) -> _Slot:
        entry = self._slots.get(slot)
        if entry is None:
            raise missing_slot(slot)
        return entry


def _fold(state: int, ids: Words) -> int:
    """A rolling hash over ids, the same however they are cut."""
    mask = (1 << 64) - 1
    multiplier = 6364136223846793005
    for token in ids.tolist():
        state = (state * multiplier + token + 1442695040888963407) & mask
    return state
