"""The reference engine: a real decoder-only transformer, small enough for two cores, with real KV (DESIGN "compute").

It is the embedded default and its own oracle: `recompute` and `verify` run whole sequences without any cache. KV of one
token and layer is K after rotary, then V, float32. Set OPENBLAS_NUM_THREADS=1 before NumPy is imported (the agent's
__main__ does): threads of several small processes on few cores only wait for each other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dualpath.engine_agent.engines.checks import (
    check_cached,
    check_chunks,
    check_layer,
    check_prompt_blocks,
    check_room,
    check_tokens,
)
from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.slots import Slots
from dualpath.engine_agent.engines.transformer import (
    Positions,
    Rotary,
    attend,
    finish_layer,
    logits_of,
    project_qkv,
)
from dualpath.engine_agent.engines.weights import Weights, loaded_weights, read_bytes, seeded_weights
from dualpath.engine_agent.ports import Floats, ForwardChunk, Sampled, Verdict
from dualpath.model.errors import Broken, Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

FLOAT_BYTES = 4


@dataclass(slots=True, eq=False)
class ReferenceForward:
    """A forward batch between two layers: the hidden states of all chunks, stacked."""

    chunks: tuple[ForwardChunk, ...]
    hidden: Floats
    positions: Positions
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
    _slots: Slots[_Slot] = field(default_factory=Slots)

    def __post_init__(self) -> None:
        self._rotary = Rotary(self.config)

    @classmethod
    def seeded(cls, config: ModelConfig, *, seed: int = 0) -> "ReferenceEngine":
        return cls(config, seeded_weights(config, seed), model_revision=f"seed-{seed}-{_short_hash(repr(config))}")

    @classmethod
    def from_safetensors(cls, folder: Path) -> "ReferenceEngine":
        """A folder with config.json and model.safetensors under Hugging Face's Qwen2 names."""
        config = ModelConfig.from_json(read_bytes(folder / "config.json"))
        content = read_bytes(folder / "model.safetensors")
        # The config counts too: another rope_theta over the same weights gives other KV.
        revision = hashlib.sha256(repr(config).encode() + content).hexdigest()[:16]
        weights = loaded_weights(config, content, name="model.safetensors")
        return cls(config, weights, model_name=folder.resolve().name, model_revision=revision)

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
        check_layer(layer, wanted=forward.next_layer, num_layers=self.config.num_hidden_layers)
        check_cached(forward.chunks, cached_kv, self.layout)
        weights = self.weights.layers[layer]
        queries, new_rows = project_qkv(forward.hidden, weights, self.config, self._rotary, forward.positions)
        attended = np.empty((len(forward.hidden), self.config.query_size), np.float32)
        resident, out = 0, []
        for (chunk, span), blocks in zip(forward.spans(), cached_kv, strict=True):
            rows = self._rows(chunk.cached, blocks, new_rows[span])
            resident += rows.nbytes
            attended[span] = attend(queries[span], rows, self.config, first=chunk.cached)
            out.append(new_rows[span].data.cast("B"))
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
        check_room(tokens, tokens_max, tokens_max=self.tokens_max)
        check_tokens((first_token,), vocab_size=self.vocab_size)
        check_prompt_blocks(blocks, tokens, self.layout)
        self._slots.check_free(slot)
        layers, row = self.config.num_hidden_layers, 2 * self.config.kv_size
        kv = np.empty((layers, tokens_max, row), np.float32)
        for index, block in enumerate(blocks):
            start = index * BLOCK_TOKENS
            count = min(BLOCK_TOKENS, tokens - start)
            kv[:, start : start + count] = _floats(block).reshape(layers, BLOCK_TOKENS, row)[:, :count]
        self._slots.put(slot, _Slot(kv, tokens, first_token))

    def decode_step(self, slots: Sequence[str]) -> list[Sampled]:
        entries = self._slots.batch(slots)
        if not entries:
            return []
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
        return self._slots.get(slot).tokens

    def copy_block(self, slot: str, index: int, into: memoryview) -> None:
        self._slots.copy_block(slot, index, into, self.layout)

    def release(self, slot: str) -> None:
        self._slots.release(slot)

    # oracle: nothing below reads or writes a cache

    def recompute(
        self, prompt: Sequence[int], max_new_tokens: int, *, stop_tokens: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], tuple[Floats, ...]]:
        """Greedy generation that computes the whole sequence anew at each step: tokens, and each step's logits.

        A stop token ends the generation and is its last token.
        """
        context, logits = list(prompt), []
        for _ in range(max_new_tokens):
            step = self.logits(context, first=len(context) - 1)[0]
            logits.append(step)
            context.append(int(step.argmax()))
            if context[-1] in stop_tokens:
                break
        return tuple(context[len(prompt) :]), tuple(logits)

    def verify(self, prompt: Sequence[int], generated: Sequence[int]) -> Verdict:
        """One forward over prompt + generation gives, for every generated token, what greedy decoding would give: if
        all of them agree, so does the step-by-step recompute, at a fraction of its cost."""
        check_tokens(generated, vocab_size=self.vocab_size)
        if not generated:
            return Verdict(equal=True, tokens_checked=0, first_mismatch=None, smallest_margin=float("inf"))
        logits = self.logits([*prompt, *generated[:-1]], first=len(prompt) - 1)
        second, best = np.partition(logits, -2, axis=-1)[:, -2:].T
        wrong = np.flatnonzero(logits.argmax(axis=-1) != np.asarray(generated))
        return Verdict(
            equal=len(wrong) == 0,
            tokens_checked=len(generated),
            first_mismatch=int(wrong[0]) if len(wrong) else None,
            smallest_margin=float(np.min(best - second)),
        )

    def logits(self, tokens: Sequence[int], *, first: int = 0) -> Floats:
        """Logits [len(tokens) - first, vocab_size] of one plain forward over the whole sequence."""
        whole = ForwardChunk(tuple(tokens), 0, is_last=True)
        check_chunks([whole], vocab_size=self.vocab_size, tokens_max=self.tokens_max)
        if not 0 <= first < len(tokens):
            raise Rejected(f"logits from token {first} of {len(tokens)}: the prompt is empty", field="prompt")
        positions = np.arange(len(tokens), dtype=np.int64)
        hidden = self.weights.embedding[np.asarray(tokens, np.int64)]
        for weights in self.weights.layers:
            queries, rows = project_qkv(hidden, weights, self.config, self._rotary, positions)
            hidden = finish_layer(hidden, attend(queries, rows, self.config, first=0), weights, self.config)
        return logits_of(hidden[first:], self.weights, self.config)

    def _rows(self, cached: int, blocks: Sequence[memoryview], new_rows: Floats) -> Floats:
        """One layer's KV rows of a chunk: cached tokens from their blocks, then the new ones."""
        row = 2 * self.config.kv_size
        rows = np.empty((cached + len(new_rows), row), np.float32)
        start = 0
        for block in blocks:
            count = min(BLOCK_TOKENS, cached - start)
            rows[start : start + count] = _floats(block).reshape(BLOCK_TOKENS, row)[:count]
            start += count
        rows[cached:] = new_rows
        return rows

    def _sample(self, hidden: Floats) -> list[Sampled]:
        """Greedy; raises Broken where the arithmetic ended in NaN, which argmax would turn into a token."""
        logits = logits_of(hidden, self.weights, self.config)
        if not np.isfinite(logits).all():
            raise Broken("logits are not finite: the KV read is damaged, or the weights are", reason="NOT_FINITE")
        return [Sampled(int(row.argmax()), row) for row in logits]


def _floats(block: memoryview) -> Floats:
    return np.frombuffer(block, np.float32)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
