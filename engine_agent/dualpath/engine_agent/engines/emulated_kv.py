"""KV bytes of the emulated engine: made up, but different for each token, position, layer and seed. Pure.

A row [bytes_per_token_layer] of little-endian 32-bit words:

    word 0   token id
    word j   base + j, where base mixes id, position, layer and seed; each of the four alone changes it for sure

So a row tells which token it belongs to and whether it stands where it was computed for: a missing, zeroed, swapped or
stale block is noticed from the rows alone, without knowing the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualpath.model.errors import Broken, Rejected
from dualpath.model.layout import BlockLayout

Words = npt.NDArray[np.uint32]
Longs = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
WORD_BYTES = 4
WORDS_MIN = 2  # the id and one word that proves it
# Odd multipliers: one-to-one modulo 2^32, so that two positions (ids, layers, seeds) never mix to the same base.
ID_FACTOR, POSITION_FACTOR, LAYER_FACTOR, SEED_FACTOR = (
    np.uint32(factor) for factor in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
)
# Knuth's MMIX generator: the rolling hash over token ids.
FOLD_FACTOR, FOLD_STEP = 6364136223846793005, 1442695040888963407
FOLD_TOKENS_MAX = 4096  # ids folded at once
_FOLD_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class KvPattern:
    """What every KV byte of a model of this layout and seed must be."""

    layout: BlockLayout
    seed: int = 0

    def __post_init__(self) -> None:
        found = self.layout.bytes_per_token_layer
        if found % WORD_BYTES or found < WORDS_MIN * WORD_BYTES:
            message = f"bytes_per_token_layer is {found}, wanted a multiple of {WORD_BYTES}, at least two of them"
            raise Rejected(message, field="bytes_per_token_layer", reason="LAYOUT")
        if not 0 <= self.seed < 1 << 32:
            raise Rejected(f"seed is {self.seed}, wanted 0 to 2^32 - 1", field="seed")

    @property
    def words(self) -> int:
        return self.layout.bytes_per_token_layer // WORD_BYTES

    def rows(self, ids: Words, first: int, layer: int) -> Words:
        """[len(ids), words]: one layer's KV of tokens at positions first, first + 1, ..."""
        return self._fill(ids, _base(ids, _range(first, len(ids)), np.uint32(layer), self.seed))

    def token_rows(self, token: int, position: int) -> Words:
        """[num_layers, words]: one token's KV in all layers."""
        ids = np.full(self.layout.num_layers, token, np.uint32)
        return self._fill(ids, _base(ids, np.uint32(position), _range(0, len(ids)), self.seed))

    def read_ids(self, blocks: Sequence[memoryview], tokens: int, layer: int, *, every_byte: bool) -> Words:
        """The ids of `tokens` tokens in one layer's blocks, [block_tokens, bytes_per_token_layer] each.

        every_byte  compare whole rows; else the first words and the last, which is where torn copies show
        raises      Broken(KV_MISMATCH), naming the positions, where a row is not what was computed
        """
        if not blocks:
            return np.empty(0, np.uint32)
        rows = [self.as_rows(block) for block in blocks]
        rows[-1] = rows[-1][: tokens - (len(rows) - 1) * self.layout.block_tokens]
        ids: Words = np.concatenate([part[:, 0] for part in rows])
        wrong = self._wrong_rows(rows, ids, layer) if every_byte else self._wrong_ends(rows, ids, layer)
        if wrong.any():
            at = np.flatnonzero(wrong)
            span = f"{len(at)} of the tokens {at[0]} to {at[-1]}"
            raise Broken(f"KV of layer {layer} is not what was computed for {span}", reason="KV_MISMATCH")
        return ids

    def as_rows(self, block: memoryview) -> Words:
        return np.frombuffer(block, np.uint32).reshape(-1, self.words)

    def _fill(self, ids: Words, base: Words) -> Words:
        rows: Words = np.add.outer(base, np.arange(self.words, dtype=np.uint32))
        rows[:, 0] = ids
        return rows

    def _wrong_ends(self, rows: Sequence[Words], ids: Words, layer: int) -> Flags:
        # All blocks of the layer at once: a check per block would cost more than the bytes it looks at.
        last = self.words - 1
        base = _base(ids, _range(0, len(ids)), np.uint32(layer), self.seed)
        firsts = np.concatenate([part[:, 1] for part in rows])
        lasts = np.concatenate([part[:, last] for part in rows])
        wrong: Flags = (firsts != base + np.uint32(1)) | (lasts != base + np.uint32(last))
        return wrong

    def _wrong_rows(self, rows: Sequence[Words], ids: Words, layer: int) -> Flags:
        wrong, start = np.empty(len(ids), np.bool_), 0
        for part in rows:
            end = start + len(part)
            wrong[start:end] = (part != self.rows(ids[start:end], start, layer)).any(axis=1)
            start = end
        return wrong


def fold(state: int, ids: Words) -> int:
    """A rolling hash over ids, the same however they are cut: state = state x FACTOR + id + STEP, modulo 2^64."""
    if len(ids) == 1:
        return (state * FOLD_FACTOR + int(ids[0]) + FOLD_STEP) & _FOLD_MASK
    for start in range(0, len(ids), FOLD_TOKENS_MAX):
        part = ids[start : start + FOLD_TOKENS_MAX].astype(np.uint64) + np.uint64(FOLD_STEP)
        count = len(part)
        mixed = int(np.sum(part * _FOLD_POWERS[count - 1 :: -1], dtype=np.uint64))
        state = (state * int(_FOLD_POWERS[count]) + mixed) & _FOLD_MASK
    return state


def _base(ids: Words, positions: Words | np.uint32, layers: Words | np.uint32, seed: int) -> Words:
    with np.errstate(over="ignore"):  # scalars warn where arrays wrap
        mixed: Words = (
            ids * ID_FACTOR ^ positions * POSITION_FACTOR ^ layers * LAYER_FACTOR ^ np.uint32(seed) * SEED_FACTOR
        )
    return mixed


def _range(first: int, count: int) -> Words:
    return np.arange(first, first + count, dtype=np.uint32)


def _powers() -> Longs:
    factors = np.full(FOLD_TOKENS_MAX + 1, FOLD_FACTOR, np.uint64)
    factors[0] = 1
    powers: Longs = np.multiply.accumulate(factors)
    return powers


_FOLD_POWERS = _powers()
