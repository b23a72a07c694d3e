"""The forward loop of one PE: packs a batch by compute quota and runs it layer by layer (paper §4.1, §6.2).

While layer l computes, layer l+1's hit KV of DE-path turns is on its way and layer l-1's results travel to the DE
buffers. Only one layer's hit KV (and the next one's, being fetched) is in the engine's memory at a time.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import structlog

from dualpath.engine_agent.batch.quota import AttentionCost, Chunk, PrefillItem, pack_batch
from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.engine_agent.plan.paths import HitSource, ReadPath, layer_pieces
from dualpath.engine_agent.ports import ComputeEngine, ForwardChunk, Piece, TransferLink
from dualpath.engine_agent.traffic.buffers import Buffer
from dualpath.engine_agent.traffic.nics import Nics
from dualpath.engine_agent.traffic.threads import on_thread
from dualpath.model.errors import DualPathError, Refused
from dualpath.model.layout import BlockLayout

BATCH_TURNS_MAX = 256  # turns in one forward batch
LINK_RETRY_S = 0.002  # pause before asking a full link again
log = structlog.get_logger("dualpath.forward")


@dataclass(slots=True, eq=False)
class PrefillTask:
    """One attempt at the PE, from the moment its hit KV can be had until its last layer has been sent.

    done_tokens  prompt tokens whose KV exists (hit, then what earlier chunks computed)
    buffer       the PE buffer as a region of full blocks; None on the DE read path
    """

    key: AttemptKey
    tokens: tuple[int, ...]
    path: ReadPath
    link: TransferLink
    region: int
    buffer: Buffer | None
    done_tokens: int
    finished: "asyncio.Future[int]"
    alone: bool = False  # its last batch failed: run it by itself, so that the fault shows whose it is
    sends: "set[asyncio.Future[None]]" = field(default_factory=set)
    send_error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.finished.done()

    def track(self, send: "Future[None]") -> None:
        """Remember a transfer until it is done; its memory may not be reused before."""
        future = asyncio.wrap_future(send)
        self.sends.add(future)
        future.add_done_callback(self._sent)

    async def all_sent(self) -> None:
        """Wait until the DE buffer holds everything; raises what went wrong with any of it."""
        if self.sends:
            await asyncio.wait(self.sends)
        if self.send_error is not None:
            raise self.send_error

    def _sent(self, future: "asyncio.Future[None]") -> None:
        self.sends.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self.send_error = self.send_error or error


class ForwardLoop:
    """Prefill queue and forward steps of one engine."""

    def __init__(self, engine: ComputeEngine, cost: AttentionCost, nics: Nics, *, quota_s: float, name: str) -> None:
        self._engine = engine
        self._layout: BlockLayout = engine.layout
        self._cost = cost
        self._nics = nics
        self.quota_s = quota_s
        self._queue: list[PrefillTask] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"forward-{name}")
        self.forwards = 0

    def submit(self, task: PrefillTask) -> None:
        self._queue.append(task)
        self._wake.set()

    async def retire(self, task: PrefillTask) -> None:
        """Take a task out and wait until neither a forward nor a transfer touches its memory."""
        if not task.finished.done():
            task.finished.cancel()
        if task in self._queue:
            self._queue.remove(task)
        await self._idle.wait()
        if task.sends:
            await asyncio.wait(task.sends)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._wake.wait()
                batch = self._pack()
                if not batch:
                    self._wake.clear()
                    continue
                self._idle.clear()
                try:
                    await self._forward(batch)
                finally:
                    self._idle.set()
                await asyncio.sleep(0)  # let retiring tasks see the idle moment
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _pack(self) -> list[tuple[PrefillTask, Chunk]]:
        self._queue = [task for task in self._queue if not task.is_over]
        line = self._queue
        head_alone = bool(line) and line[0].alone
        line = line[:1] if head_alone else [task for task in line if not task.alone]
        items = [
            PrefillItem(
                turn_id=task.key.turn_id,
                attempt=task.key.attempt,
                cached=task.done_tokens,
                remaining=task.path.prompt_tokens - task.done_tokens,
            )
            for task in line[:BATCH_TURNS_MAX]
        ]
        chunks = pack_batch(items, self.quota_s, self._cost)
        return list(zip(line, chunks, strict=False))

    async def _forward(self, batch: list[tuple[PrefillTask, Chunk]]) -> None:
        try:
            tokens = await self._run_layers(batch)
        except (DualPathError, ValueError, ArithmeticError) as error:
            self._blame(batch, error)
            return
        self.forwards += 1
        for (task, chunk), token in zip(batch, tokens, strict=True):
            task.done_tokens += chunk.bsz
            if token is not None and not task.is_over:
                self._queue.remove(task)
                task.finished.set_result(token)

    def _blame(self, batch: list[tuple[PrefillTask, Chunk]], error: Exception) -> None:
        """A batch that failed: one turn alone is at fault, several are tried one by one."""
        log.warning("forward failed", turns=len(batch), error=str(error))
        for task, _ in batch:
            if len(batch) > 1 and not task.alone:
                task.alone = True
            elif not task.is_over:
                task.finished.set_exception(error)

    async def _run_layers(self, batch: list[tuple[PrefillTask, Chunk]]) -> list[int | None]:
        chunks = [_chunk_of(task, chunk) for task, chunk in batch]
        forward = await on_thread(self._thread, self._engine.begin_forward, chunks)
        loads = [asyncio.ensure_future(self._load(task, chunk.cached, 0)) for task, chunk in batch]
        try:
            for layer in range(self._layout.num_layers):
                cached = [await load for load in loads]
                if layer + 1 < self._layout.num_layers:
                    loads = [asyncio.ensure_future(self._load(task, chunk.cached, layer + 1)) for task, chunk in batch]
                computed = await on_thread(self._thread, self._engine.forward_layer, forward, layer, cached)
                for (task, chunk), kv in zip(batch, computed, strict=True):
                    await self._send(task, chunk, layer, memoryview(kv).cast("B"))
        finally:
            await asyncio.wait(loads)
            for load in loads:
                if not load.cancelled():
                    load.exception()  # seen: the first failure already propagates
            sampled = await on_thread(self._thread, self._engine.end_forward, forward)
        return [None if one is None else one.token for one in sampled]

    async def _load(self, task: PrefillTask, cached: int, layer: int) -> list[memoryview]:
        """The layer blocks of the tokens that have KV already: steps 3,4 (PE path) or 3-5 (DE path)."""
        layout = self._layout
        blocks = layout.blocks_for(cached)
        if blocks == 0:
            return []
        if task.buffer is not None:
            memory = task.buffer.memory
            starts = [offset for offset, _ in layer_pieces(layout, layer=layer, first=0, tokens=cached)]
            await asyncio.to_thread(self._nics.cnic_received.take, cached * layout.bytes_per_token_layer)
            return [memory[start : start + layout.layer_block_bytes] for start in starts]
        staging = memoryview(bytearray(blocks * layout.layer_block_bytes))
        pieces = layer_pieces(layout, layer=layer, first=0, tokens=cached)
        targets = [
            (offset, staging[index * layout.layer_block_bytes :][:length])
            for index, (offset, length) in enumerate(pieces)
        ]
        await asyncio.wrap_future(await _post(task.link.read, task.region, targets))
        return [staging[i * layout.layer_block_bytes : (i + 1) * layout.layer_block_bytes] for i in range(blocks)]

    async def _send(self, task: PrefillTask, chunk: Chunk, layer: int, kv: memoryview) -> None:
        """Send a layer's KV to the DE buffer: of all prompt tokens on the PE path, of the misses on the DE path."""
        if task.is_over:
            return
        pieces = _cut(kv, layer_pieces(self._layout, layer=layer, first=chunk.cached, tokens=chunk.bsz))
        if task.buffer is not None:
            for offset, view in pieces:  # a later chunk finds it there
                task.buffer.memory[offset : offset + len(view)] = view
            if chunk.cached == task.path.hit_tokens and task.path.source is HitSource.PE_BUFFER:
                hits = layer_pieces(self._layout, layer=layer, first=0, tokens=task.path.hit_tokens)
                pieces = [(at, task.buffer.memory[at : at + length]) for at, length in hits] + pieces
        task.track(await _post(task.link.write, task.region, pieces))


def _chunk_of(task: PrefillTask, chunk: Chunk) -> ForwardChunk:
    first = chunk.cached - task.path.hit_tokens
    tokens = task.tokens[first : first + chunk.bsz]
    return ForwardChunk(tokens=tokens, cached=chunk.cached, is_last=chunk.cached + chunk.bsz == task.path.prompt_tokens)


def _cut(kv: memoryview, pieces: Sequence[tuple[int, int]]) -> list[Piece]:
    cut, at = [], 0
    for offset, length in pieces:
        cut.append((offset, kv[at : at + length]))
        at += length
    return cut


async def _post(
    post: Callable[[int, Sequence[Piece]], "Future[None]"], region: int, pieces: Sequence[Piece]
) -> "Future[None]":
    """Queue a transfer, waiting while the link's bounded queue is full."""
    while True:
        try:
            return post(region, pieces)
        except Refused as error:
            if error.reason != "LINK_FULL":
                raise
            await asyncio.sleep(LINK_RETRY_S)
