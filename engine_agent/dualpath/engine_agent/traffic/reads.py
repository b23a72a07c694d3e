"""Reading the hit blocks of an attempt from storage into its buffer: step 1,2 of Fig. 4, on either side."""

import asyncio
from collections.abc import Callable

from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.model.layout import BlockLayout
from dualpath.model.turn import Plan
from dualpath.storage_shim.reader import BlockReader


class HitReader:
    """The node's read queue (read_q): hit tokens from the moment a plan says "read here" until they are in a buffer."""

    def __init__(self, reader: BlockReader, layout: BlockLayout, *, on_change: Callable[[], None]) -> None:
        self._reader = reader
        self._layout = layout
        self._on_change = on_change
        self._queued: dict[AttemptKey, int] = {}

    @property
    def read_queue_tokens(self) -> int:
        return sum(self._queued.values())

    def expect(self, key: AttemptKey, hit_tokens: int) -> None:
        """Count a read from now on, though its buffer is still waited for."""
        self._queued[key] = hit_tokens

    def forget(self, key: AttemptKey) -> None:
        """The read is over, however it ended; forgetting twice changes nothing."""
        if self._queued.pop(key, None) is not None:
            self._on_change()

    async def read(self, key: AttemptKey, plan: Plan, memory: memoryview) -> int:
        """Fill `memory` with the turn's hit blocks; returns the tokens of the longest good prefix.

        memory  at least len(hit_keys) full blocks; it is not touched any more when this returns or raises
        raises  Refused if the reader's queue is full
        """
        keys = plan.turn.hit_keys
        nbytes = len(keys) * self._layout.full_block_bytes
        ticket = self._reader.submit(self._reader.prepare(keys, memory[:nbytes]))
        try:
            outcome = await asyncio.shield(asyncio.wrap_future(ticket.future))
        except asyncio.CancelledError:
            ticket.cancel()
            await asyncio.wait([asyncio.wrap_future(ticket.future)])
            raise
        finally:
            self.forget(key)
        return outcome.good_blocks * self._layout.block_tokens
