"""A small turn run through any engine, block by block, as an agent does it: what all engine tests share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dualpath.engine_agent.engines.emulated import EmulatedEngine
from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.reference import ReferenceEngine
from dualpath.engine_agent.ports import ComputeEngine, Floats, ForwardChunk, Sampled
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

# Logits of differently shaped products differ by rounding, about 1e-6 here; KV rows likewise.
LOGITS_TOLERANCE = KV_TOLERANCE = 1e-4

VOCAB_SIZE, TOKENS_MAX = 512, 512
# As wide as the default model: narrower ones repeat one token for ever, whatever they read.
SMALL = ModelConfig(num_hidden_layers=3, vocab_size=VOCAB_SIZE, max_position_embeddings=TOKENS_MAX)


class Engine(ComputeEngine, Protocol):
    """A compute engine that brings its own step-by-step oracle."""

    def recompute(
        self, prompt: Sequence[int], max_new_tokens: int, *, stop_tokens: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], tuple[Floats, ...]]: ...


@dataclass(frozen=True)
class Item:
    """One turn of a forward batch: `tokens` are computed after what `host` holds."""

    host: "HostKv"
    tokens: Sequence[int]
    is_last: bool = True


class HostKv:
    """A turn's KV in host memory as full blocks: what a PE buffer or a DE buffer is."""

    def __init__(self, layout: BlockLayout, tokens_max: int) -> None:
        self.layout = layout
        blocks = layout.blocks_for(tokens_max)
        shape = (blocks, layout.num_layers, layout.block_tokens, layout.bytes_per_token_layer)
        self.bytes = np.zeros(shape, np.uint8)
        self.tokens = 0

    def layer_blocks(self, layer: int) -> list[memoryview]:
        count = self.layout.blocks_for(self.tokens)
        return [self.bytes[index, layer].reshape(-1).data for index in range(count)]

    def full_blocks(self) -> list[memoryview]:
        count = self.layout.blocks_for(self.tokens)
        return [self.bytes[index].reshape(-1).data for index in range(count)]

    def rows(self, layer: int) -> npt.NDArray[np.uint8]:
        """[tokens, bytes_per_token_layer] of one layer, copied."""
        return self.bytes[:, layer].reshape(-1, self.layout.bytes_per_token_layer)[: self.tokens].copy()

    def put(self, layer: int, kv: memoryview) -> None:
        """The KV of new tokens, behind those that are there."""
        new = np.frombuffer(kv, np.uint8).reshape(-1, self.layout.bytes_per_token_layer)
        for offset, row in enumerate(new):
            block, at = divmod(self.tokens + offset, self.layout.block_tokens)
            self.bytes[block, layer, at] = row

    def copy(self) -> "HostKv":
        twin = HostKv(self.layout, 1)
        twin.bytes, twin.tokens = self.bytes.copy(), self.tokens
        return twin


def small_reference(*, seed: int = 7) -> ReferenceEngine:
    return ReferenceEngine.seeded(SMALL, seed=seed)


def small_emulated(*, seed: int = 7, check_bytes: bool = True) -> EmulatedEngine:
    layout = BlockLayout(3, BLOCK_TOKENS, 48)
    return EmulatedEngine(
        layout, vocab_size=VOCAB_SIZE, tokens_max=TOKENS_MAX, seed=seed, check_bytes=check_bytes, sleep=lambda _: None
    )


def forward(engine: ComputeEngine, items: Sequence[Item]) -> list[Sampled | None]:
    """One forward batch; the new KV joins each turn's host memory."""
    chunks = [ForwardChunk(tuple(item.tokens), item.host.tokens, item.is_last) for item in items]
    batch = engine.begin_forward(chunks)
    for layer in range(engine.layout.num_layers):
        cached = [item.host.layer_blocks(layer) for item in items]
        computed = engine.forward_layer(batch, layer, cached)
        for item, kv in zip(items, computed, strict=True):
            item.host.put(layer, kv)
    for item in items:
        item.host.tokens += len(item.tokens)
    return list(engine.end_forward(batch))


def prefill(engine: ComputeEngine, prompt: Sequence[int], *, cuts: Sequence[int] = ()) -> tuple[HostKv, Sampled]:
    """Prefill a prompt in chunks that end at `cuts`; the turn's KV and its first generated token."""
    host = HostKv(engine.layout, len(prompt) + BLOCK_TOKENS)  # room for a test to append
    ends = [*cuts, len(prompt)]
    sampled: Sampled | None = None
    for end in ends:
        sampled = forward(engine, [Item(host, prompt[host.tokens : end], end == len(prompt))])[0]
    assert sampled is not None
    return host, sampled


def admit(engine: ComputeEngine, slot: str, host: HostKv, first_token: int, *, room: int) -> None:
    engine.admit(slot, host.full_blocks(), host.tokens, host.tokens + room, first_token)


def generate(engine: ComputeEngine, slot: str, host: HostKv, first_token: int, count: int) -> list[int]:
    """`count` generated tokens, the first included."""
    admit(engine, slot, host, first_token, room=max(1, count))
    return [first_token] + [engine.decode_step([slot])[0].token for _ in range(count - 1)]


def random_tokens(count: int, *, seed: int, vocab_size: int = VOCAB_SIZE) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()  # type: ignore[no-any-return]
