"""The reference engine: a real decoder-only transformer, small enough for two cores, with real KV (DESIGN "compute").

It is the embedded default and its own oracle: `verify` recomputes a whole turn without any cache. KV of one token and
layer is K after rotary, then V, float32.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dualpath.engine_agent.engines.model_config import ModelConfig, Weights, loaded_weights, seeded_weights
from dualpath.engine_agent.engines.slots import check_cached, check_chunks, missing_slot
from dualpath.engine_agent.engines.transformer import Rotary, attend, finish_layer, project_qkv, rms_norm
from dualpath.engine_agent.ports import Floats, ForwardChunk, Sampled, Verdict
from dualpath.model.errors import BlockSizeError, Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

FLOAT_BYTES = 4


@dataclass(slots=True, eq=False)
class ReferenceForward:
    """A forward batch between two layers: the hidden states of all chunks, stacked."""

    chunks: tuple[ForwardChunk, ...]
    hidden: Floats
    positions: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    next_layer: int = 0

    def spans(self) -> list[tuple[ForwardChunk, slice]]:
        spans, start = [], 0
        for chunk in self.chunks:
            spans.append((chunk, slice(start, start + len(chunk.tokens))))
            start += len(chunk.tokens)
        return spans


@dataclass(slots=True, eq=False)
class _Slot:
    kv: Floats  # [num_layers, tokens_max, 2 x kv_size]
    tokens: int  # tokens with KV
    last_token: int


@dataclass(eq=False)
class ReferenceEngine:
    """Layerwise prefill and batched decode of one model on the CPU."""

    config: ModelConfig
    weights: Weights
    model_name: str = "reference"
    model_revision: str = "seed-0"
    dtype: str = "float32"
    resident_kv_bytes_peak: int = 0  # most prefix KV a forward held at once: one layer of its batch
    _slots: dict[str, _Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rotary = Rotary(self.config)

    @classmethod
    def seeded(cls, config: ModelConfig, *, seed: int = 0) -> "ReferenceEngine":
        return cls(config, seeded_weights(config, seed), model_revision=f"seed-{seed}-{_short_hash(repr(config))}")

    @classmethod
    def from_safetensors(cls, folder: Path) -> "ReferenceEngine":
        """A folder with config.json and model.safetensors under Hugging Face's Qwen2 names."""
        config = ModelConfig.from_json(folder / "config.json")
        weights = folder / "model.safetensors"
        revision = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        return cls(config, loaded_weights(config, weights), model_name=folder.name, model_revision=revision)

    @property
    def layout(self) -> BlockLayout:
        return BlockLayout(self.config.num_hidden_layers, BLOCK_TOKENS, 2 * self.config.kv_size * FLOAT_BYTES)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def tokens_max(self) -> int:
        return self.config.max_position_embeddings

    # prefill

    def begin_forward(self, chunks: Sequence[ForwardChunk]) -> ReferenceForward:
        check_chunks(chunks, vocab_size=self.vocab_size, tokens_max=self.tokens_max)
        tokens = np.concatenate([np.asarray(chunk.tokens, np.int64) for chunk in chunks])
        positions = np.concatenate(
            [np.arange(chunk.cached, chunk.cached + len(chunk.tokens), dtype=np.int64) for chunk in chunks]
        )
        return ReferenceForward(tuple(chunks), self.weights.embedding[tokens], positions)

    def forward_layer(
        self, forward: ReferenceForward, layer: int, cached_kv: Sequence[Sequence[memoryview]]
    ) -> list[memoryview]:
        if layer != forward.next_layer:
            raise Rejected(f"layer {layer} asked for, wanted {forward.next_layer}", field="layer")
        check_cached(forward.chunks, cached_kv, self.layout)
        weights = self.weights.layers[layer]
        queries, new_rows = project_qkv(forward.hidden, weights, self.config, self._rotary, forward.positions)
        attended = np.empty((len(forward.hidden), self.config.query_size), np.float32)
        resident, out = 0, []
        for (chunk, span), blocks in zip(forward.spans(), cached_kv, strict=True):
            rows = self._rows(chunk.cached, blocks, new_rows[span])
            resident += rows.nbytes
            attended[span] = attend(queries[span], rows, self.config, first=chunk.cached)
            out.append(np.ascontiguousarray(new_rows[span]).data.cast("B"))
        self.resident_kv_bytes_peak = max(self.resident_kv_bytes_peak, resident)
        forward.hidden = finish_layer(forward.hidden, attended, weights, self.config)
        forward.next_layer += 1
        return out

    def end_forward(self, forward: ReferenceForward) -> list[Sampled | None]:
        if forward.next_layer < self.config.num_hidden_layers:
            return [None] * len(forward.chunks)  # given up on the way
        ends = [span.stop - 1 for chunk, span in forward.spans() if chunk.is_last]
        sampled = iter(self._sample(forward.hidden[ends]) if ends else ())
        return [next(sampled) if chunk.is_last else None for chunk in forward.chunks]

    # decode

    def admit(self, slot: str, blocks: Sequence[memoryview], tokens: int, tokens_max: int, first_token: int) -> None:
        layout, config = self.layout, self.config
        if len(blocks) != layout.blocks_for(tokens) or any(len(b) != layout.full_block_bytes for b in blocks):
            wanted = f"{layout.blocks_for(tokens)} of {layout.full_block_bytes} bytes"
            message = f"{len(blocks)} blocks for {tokens} tokens, wanted {wanted}"
            raise BlockSizeError(message)
        if not tokens < tokens_max <= self.tokens_max:
            raise Rejected(f"slot for {tokens_max} tokens, the model takes {self.tokens_max}", field="tokens_max")
        kv = np.empty((config.num_hidden_layers, tokens_max, 2 * config.kv_size), np.float32)
        for index, block in enumerate(blocks):
            start = index * layout.block_tokens
            count = min(layout.block_tokens, tokens - start)
            shape = (config.num_hidden_layers, layout.block_tokens, 2 * config.kv_size)
            kv[:, start : start + count] = np.frombuffer(block, np.float32).reshape(shape)[:, :count]
        self._slots[slot] = _Slot(kv, tokens, first_token)

    def decode_step(self, slots: Sequence[str]) -> list[Sampled]:
        entries = [self._slot(slot) for slot in slots]
        positions = np.array([entry.tokens for entry in entries], np.int64)
        hidden = self.weights.embedding[[entry.last_token for entry in entries]]
        for layer, weights in enumerate(self.weights.layers):
            queries, rows = project_qkv(hidden, weights, self.config, self._rotary, positions)
            attended = np.empty((len(entries), self.config.query_size), np.float32)
            for i, entry in enumerate(entries):
                entry.kv[layer, entry.tokens] = rows[i]
                seen = entry.kv[layer, : entry.tokens + 1]
                attended[i] = attend(queries[i : i + 1], seen, self.config, first=entry.tokens)[0]
            hidden = finish_layer(hidden, attended, weights, self.config)
        sampled = self._sample(hidden)
        for entry, one in zip(entries, sampled, strict=True):
            entry.tokens += 1
            entry.last_token = one.token
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
        target = np.frombuffer(into, np.float32).reshape(self.config.num_hidden_layers, layout.block_tokens, -1)
        target[:] = entry.kv[:, start:end]

    def release(self, slot: str) -> None:
        self._slots.pop(slot, None)

    # oracle

    def recompute(self, tokens: Sequence[int]) -> Floats:
        """Logits [len(tokens), vocab_size] of a plain forward over the whole sequence: no blocks, no cache."""
        check_chunks(
            [ForwardChunk(tuple(tokens), 0, is_last=True)], vocab_size=self.vocab_size, tokens_max=self.tokens_max
        )
        positions = np.arange(len(tokens), dtype=np.int64)
        hidden = self.weights.embedding[np.asarray(tokens, np.int64)]
        for weights in self.weights.layers:
            queries, rows = project_qkv(hidden, weights, self.config, self._rotary, positions)
            hidden = finish_layer(hidden, attend(queries, rows, self.config, first=0), weights, self.config)
        return rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps) @ self.weights.head

    def verify(self, prompt: Sequence[int], generated: Sequence[int]) -> Verdict:
        """One recompute of prompt + generation shows for every generated token whether greedy decoding gives it."""
        logits = self.recompute([*prompt, *generated[:-1]])[len(prompt) - 1 :]
        best = logits.argmax(axis=-1)
        top = np.partition(logits, -2, axis=-1)[:, -2:]
        margin = float(np.min(top[:, 1] - top[:, 0])) if len(generated) else float("inf")
        for index, token in enumerate(generated):
            if int(best[index]) != token:
                return Verdict(False, len(generated), index, margin)
        return Verdict(True, len(generated), None, margin)

    def _rows(self, cached: int, blocks: Sequence[memoryview], new_rows: Floats) -> Floats:
        """One layer's KV rows of a chunk: cached tokens from their blocks, then the new ones."""
        rows = np.empty((cached + len(new_rows), 2 * self.config.kv_size), np.float32)
        start = 0
        for block in blocks:
            count = min(BLOCK_TOKENS, cached - start)
            rows[start : start + count] = np.frombuffer(block, np.float32).reshape(-1, 2 * self.config.kv_size)[:count]
            start += count
        rows[cached:] = new_rows
        return rows

    def _sample(self, hidden: Floats) -> list[Sampled]:
        logits = rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps) @ self.weights.head
        return [Sampled(int(row.argmax()), row) for row in logits]

    def _slot(self, slot: str) -> _Slot:
        entry = self._slots.get(slot)
        if entry is None:
            raise missing_slot(slot)
        return entry


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
