"""The tokens of one turn as they come, for whoever watches, and the blocks they fill."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.model.ids import ROOT_KEY, BlockKey, Namespace
from dualpath.model.keys import block_key
from dualpath.model.turn import EndReason, Turn


class Generation:
    """What a turn has generated so far and when it must stop (a DE's view)."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.tokens: list[int] = []
        self.end_reason: EndReason | None = None
        self._closed = False
        self._news = asyncio.Event()

    def add(self, token: int) -> None:
        """Take the next token; sets `end_reason` when it was the last."""
        self.tokens.append(token)
        if not self.turn.forced_tokens and token in self.turn.stop_tokens:
            self.end_reason = EndReason.STOP_TOKEN
        elif len(self.tokens) >= self.turn.max_new_tokens:
            self.end_reason = EndReason.LENGTH
        self._wake()

    def close(self) -> None:
        """No more tokens will come: finished, failed or cancelled."""
        self._closed = True
        self._wake()

    async def follow(self, offset: int) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
        """(offset, tokens) from `offset` on until the generation is closed."""
        while True:
            if offset < len(self.tokens):
                chunk = tuple(self.tokens[offset:])
                yield offset, chunk
                offset += len(chunk)
            elif self._closed:
                return
            else:
                await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class GenerationBook:
    """Generations by attempt, the newest `retained_max` ended ones included, so that a late reader still finds them."""

    def __init__(self, *, retained_max: int = 1024) -> None:
        self._retained_max = retained_max
        self._by_key: OrderedDict[AttemptKey, Generation] = OrderedDict()

    def open(self, key: AttemptKey, turn: Turn) -> Generation:
        generation = Generation(turn)
        self._by_key[key] = generation
        while len(self._by_key) > self._retained_max:
            self._by_key.popitem(last=False)
        return generation

    def find(self, key: AttemptKey) -> Generation | None:
        return self._by_key.get(key)


class BlockChain:
    """Keys of the blocks a turn adds after its hit blocks; block numbers count from the session's root."""

    def __init__(self, turn: Turn, generation: Generation, *, namespace: Namespace, block_tokens: int) -> None:
        self._turn = turn
        self._generation = generation
        self._namespace = namespace
        self.block_tokens = block_tokens
        self.hit_blocks = turn.hit_tokens // block_tokens
        self.keys: list[BlockKey] = []

    @property
    def blocks(self) -> int:
        """Blocks of the chain that have a key, hit blocks included."""
        return self.hit_blocks + len(self.keys)

    def extend(self) -> tuple[BlockKey, BlockKey, tuple[int, ...]]:
        """Name the next block: (key, parent, its tokens). The caller has seen that all its tokens exist."""
        first = len(self.keys) * self.block_tokens
        prompt = self._turn.tokens[first : first + self.block_tokens]
        start = max(0, first - len(self._turn.tokens))
        more = self._generation.tokens[start : start + self.block_tokens - len(prompt)]
        tokens = (*prompt, *more)
        parent = self.keys[-1] if self.keys else (self._turn.hit_keys[-1] if self._turn.hit_keys else ROOT_KEY)
        key = block_key(self._namespace, parent, tokens)
        self.keys.append(key)
        return key, parent, tokens
