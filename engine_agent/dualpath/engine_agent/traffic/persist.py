"""Persisting a turn's new full blocks as soon as their last token has KV (paper §4.1: every 64 tokens, at once)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.engine_agent.traffic.generation import BlockChain
from dualpath.model.errors import DualPathError
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.outcomes import BlockHeader
from dualpath.storage_shim.writer import BlockWriter

log = structlog.get_logger("dualpath.persist")

CopyBlock = Callable[[AttemptKey, int, memoryview], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Persister:
    """The node's way to storage: the bounded writer, and a bound on blocks copied and not yet written."""

    writer: BlockWriter
    layout: BlockLayout
    window: asyncio.Semaphore  # at most this many full blocks of staging memory


class TurnPersist:
    """Persists the blocks of one turn in any order and tells how far the chain is whole."""

    def __init__(self, key: AttemptKey, chain: BlockChain, persister: Persister, copy_block: CopyBlock) -> None:
        self._key = key
        self.chain = chain
        self._persister = persister
        self._copy_block = copy_block
        self._puts: list[asyncio.Task[bool]] = []

    def advance(self, kv_tokens: int) -> None:
        """Start writing every block that has become full now that `kv_tokens` tokens have KV."""
        while self.chain.blocks < kv_tokens // self._persister.layout.block_tokens:
            index = self.chain.blocks
            key, parent, tokens = self.chain.extend()
            self._puts.append(asyncio.create_task(self._put(index, BlockHeader(key, parent, tokens))))

    async def settle(self) -> int:
        """Wait for all writes; returns the blocks of the chain that are whole, hit blocks included.

        A block that could not be written (a full disk) ends the context there: the next turn computes the rest again.
        """
        whole = self.chain.hit_blocks
        for good in await asyncio.gather(*self._puts):
            if not good:
                break
            whole += 1
        return whole

    async def cancel(self) -> None:
        """Stop; afterwards nothing reads the turn's HBM any more. Blocks written stay: they are right and complete."""
        for put in self._puts:
            put.cancel()
        if self._puts:
            await asyncio.wait(self._puts)

    async def _put(self, index: int, header: BlockHeader) -> bool:
        async with self._persister.window:
            block = memoryview(bytearray(self._persister.layout.full_block_bytes))
            await self._copy_block(self._key, index, block)
            try:
                await asyncio.shield(asyncio.wrap_future(self._persister.writer.submit(header, block)))
            except (DualPathError, OSError) as error:
                log.warning("block not persisted", turn=str(self._key), block=index, error=str(error))
                return False
            return True
