"""The emulated engine: a cost model for time, real bytes for KV.

KV is a pattern (emulated_kv.py) that is checked whenever it comes back, so that what storage and network moved is
proven. The next token is a function of all token ids before it, read from the KV of layer 0: wrong KV gives an error
or other tokens, never the right ones.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from dualpath.engine_agent.engines.checks import (
    check_cached,
    check_chunks,
    check_layer,
    check_prompt_blocks,
    check_room,
    check_tokens,
)
from dualpath.engine_agent.engines.emulated_kv import KvPattern, Words, fold
from dualpath.engine_agent.engines.slots import Slots
from dualpath.engine_agent.ports import Floats, ForwardChunk, Sampled, Verdict
from dualpath.model.errors import Broken, Rejected
from dualpath.model.layout import BlockLayout

TOKENS_MAX = 1 << 20


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

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) >= 0:
                raise Rejected(f"{one.name} is {getattr(self, one.name)}, wanted at least 0", field=one.name)

    def layer_s(self, chunks: Sequence[ForwardChunk], num_layers: int) -> float:
        """One layer's share of a forward: layers are alike."""
        total = self.prefill_s_per_forward
        for chunk in chunks:
            new = len(chunk.tokens)
            pairs = new * chunk.cached + new * (new + 1) / 2
            total += new * self.prefill_s_per_token + pairs * self.prefill_s_per_token_pair
        return total / num_layers

    def step_s(self, turns: int) -> float:
        return self.decode_s_per_step + turns * self.decode_s_per_turn


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
    """Same calls as a real engine, chosen KV size, chosen speed.

    seed         another seed is another model: other KV, other tokens
    check_bytes  compare every KV byte that comes back, not only each row's first and last words
    sleep        takes the seconds that compute would take; tests and the simulator pass their own
    """

    layout: BlockLayout
    cost: EmulatedCost = EmulatedCost()
    vocab_size: int = 32_000
    tokens_max: int = TOKENS_MAX
    seed: int = 0
    check_bytes: bool = False
    model_name: str = "emulated"
    dtype: str = "bytes"
    sleep: Callable[[float], None] = time.sleep
    _slots: Slots[_Slot] = field(default_factory=Slots)

    def __post_init__(self) -> None:
        self._pattern = KvPattern(self.layout, self.seed)
        for name in ("vocab_size", "tokens_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name} is {getattr(self, name)}, wanted at least 1", field=name)

    @property
    def model_revision(self) -> str:
        return f"2-seed-{self.seed}"  # 2: the second pattern of bytes; stored blocks of the first do not fit it

    # prefill

    def begin_forward(self, chunks: Sequence[ForwardChunk]) -> EmulatedForward:
        check_chunks(chunks, vocab_size=self.vocab_size, tokens_max=self.tokens_max)
        return EmulatedForward(tuple(chunks))

    def forward_layer(
        self, forward: EmulatedForward, layer: int, cached_kv: Sequence[Sequence[memoryview]]
    ) -> list[memoryview]:
        check_layer(layer, wanted=forward.next_layer, num_layers=self.layout.num_layers)
        check_cached(forward.chunks, cached_kv, self.layout)
        out, sampled = [], []
        for chunk, blocks in zip(forward.chunks, cached_kv, strict=True):
            cached = self._read_ids(blocks, chunk.cached, layer)
            new = np.asarray(chunk.tokens, np.uint32)
            out.append(self._pattern.rows(new, chunk.cached, layer).data.cast("B"))
            if layer == 0:
                state = fold(fold(self.seed, cached), new)
                sampled.append(Sampled(self._next(state)) if chunk.is_last else None)
        self.sleep(self.cost.layer_s(forward.chunks, self.layout.num_layers))
        if layer == 0:
            forward.sampled = sampled
        forward.next_layer += 1
        return out

    def end_forward(self, forward: EmulatedForward) -> list[Sampled | None]:
        if forward.next_layer < self.layout.num_layers:
            return [None] * len(forward.chunks)  # given up on the way
        return forward.sampled

    # decode

    def admit(self, slot: str, blocks: Sequence[memoryview], tokens: int, tokens_max: int, first_token: int) -> None:
        check_room(tokens, tokens_max, tokens_max=self.tokens_max)
        check_tokens((first_token,), vocab_size=self.vocab_size)
        check_prompt_blocks(blocks, tokens, self.layout)
        self._slots.check_free(slot)
        kv = np.empty((self.layout.num_layers, tokens_max, self._pattern.words), np.uint32)
        size = self.layout.layer_block_bytes
        flat = [block.cast("B") for block in blocks]
        for layer in range(self.layout.num_layers):
            layer_blocks = [block[layer * size : (layer + 1) * size] for block in flat]
            ids = self._read_ids(layer_blocks, tokens, layer)
            if layer and not np.array_equal(ids, kv[0, :tokens, 0]):
                raise Broken(f"KV of layer {layer} is of other tokens than layer 0", reason="KV_MISMATCH")
            self._copy_layer(layer_blocks, kv[layer, :tokens])
        self._slots.put(slot, _Slot(kv, tokens, first_token, fold(self.seed, kv[0, :tokens, 0])))

    def decode_step(self, slots: Sequence[str]) -> list[Sampled]:
        entries = self._slots.batch(slots)
        if not entries:
            return []
        self.sleep(self.cost.step_s(len(entries)))
        sampled = []
        for entry in entries:
            entry.kv[:, entry.tokens] = self._pattern.token_rows(entry.last_token, entry.tokens)
            entry.state = fold(entry.state, np.asarray([entry.last_token], np.uint32))
            entry.tokens += 1
            entry.last_token = self._next(entry.state)
            sampled.append(Sampled(entry.last_token))
        return sampled

    def kv_tokens(self, slot: str) -> int:
        return self._slots.get(slot).tokens

    def copy_block(self, slot: str, index: int, into: memoryview) -> None:
        self._slots.copy_block(slot, index, into, self.layout)

    def release(self, slot: str) -> None:
        self._slots.release(slot)

    # oracle: from token ids alone

    def recompute(
        self, prompt: Sequence[int], max_new_tokens: int, *, stop_tokens: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], tuple[Floats, ...]]:
        """The tokens that follow `prompt`; no logits. A stop token ends the generation and is its last token."""
        state, generated = self._state_of(prompt), []
        for _ in range(max_new_tokens):
            generated.append(self._next(state))
            if generated[-1] in stop_tokens:
                break
            state = fold(state, np.asarray(generated[-1:], np.uint32))
        return tuple(generated), ()

    def verify(self, prompt: Sequence[int], generated: Sequence[int]) -> Verdict:
        """Each generated token against the one that follows the ids before it. Integers: no rounding, no margin."""
        check_tokens(generated, vocab_size=self.vocab_size)
        state, first_mismatch = self._state_of(prompt), None
        for index, token in enumerate(generated):
            if self._next(state) != token:
                first_mismatch = index
                break
            state = fold(state, np.asarray([token], np.uint32))
        return Verdict(first_mismatch is None, len(generated), first_mismatch, float("inf"))

    def _state_of(self, prompt: Sequence[int]) -> int:
        whole = ForwardChunk(tuple(prompt), 0, is_last=True)
        check_chunks([whole], vocab_size=self.vocab_size, tokens_max=self.tokens_max)
        return fold(self.seed, np.asarray(prompt, np.uint32))

    def _next(self, state: int) -> int:
        return (state ^ (state >> 29)) % self.vocab_size

    def _read_ids(self, blocks: Sequence[memoryview], tokens: int, layer: int) -> Words:
        return self._pattern.read_ids(blocks, tokens, layer, every_byte=self.check_bytes)

    def _copy_layer(self, blocks: Sequence[memoryview], into: Words) -> None:
        """Layer blocks into one layer of a slot, [tokens, words]."""
        for index, block in enumerate(blocks):
            target = into[index * self.layout.block_tokens :][: self.layout.block_tokens]
            target[:] = self._pattern.as_rows(block)[: len(target)]
