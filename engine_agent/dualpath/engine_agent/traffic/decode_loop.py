"""The decode loop of one DE: a continuous batch of everything it has (paper §4.1: a DE batches everything)."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.engine_agent.ports import ComputeEngine
from dualpath.engine_agent.traffic.generation import Generation
from dualpath.engine_agent.traffic.nics import Nics
from dualpath.engine_agent.traffic.persist import TurnPersist
from dualpath.engine_agent.traffic.threads import on_thread
from dualpath.model.errors import DualPathError

log = structlog.get_logger("dualpath.decode")


@dataclass(slots=True, eq=False)
class Seat:
    """One turn in the batch. `finished` ends with None, or with what the engine raised."""

    key: AttemptKey
    generation: Generation
    persist: TurnPersist
    finished: "asyncio.Future[None]"


class DecodeLoop:
    """Seats and decode steps of one engine; all calls into the engine run on its one thread."""

    def __init__(self, engine: ComputeEngine, nics: Nics, *, name: str) -> None:
        self._engine = engine
        self._nics = nics
        self._seats: dict[AttemptKey, Seat] = {}
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"decode-{name}")
        self.steps = 0

    async def admit(self, seat: Seat, blocks: Sequence[memoryview], *, first_token: int) -> None:
        """Copy the prompt's KV to HBM (step 8,9) and let the turn join the batch with the next step."""
        turn = seat.generation.turn
        nbytes = turn.prompt_tokens * self._engine.layout.bytes_per_token
        await asyncio.to_thread(self._nics.cnic_received.take, nbytes)
        await on_thread(
            self._thread,
            self._engine.admit,
            str(seat.key),
            blocks,
            turn.prompt_tokens,
            turn.total_tokens_max,
            first_token,
        )

    def join(self, seat: Seat) -> None:
        """Start stepping an admitted seat whose first token is known."""
        seat.persist.advance(self._engine.kv_tokens(str(seat.key)))
        if self._is_complete(seat):
            seat.finished.set_result(None)
            return
        self._seats[seat.key] = seat
        self._wake.set()

    async def copy_block(self, key: AttemptKey, index: int, into: memoryview) -> None:
        """Device -> host: one full block, for persisting."""
        await on_thread(self._thread, self._engine.copy_block, str(key), index, into)

    async def release(self, key: AttemptKey) -> None:
        """Free the turn's HBM; releasing twice changes nothing."""
        self._seats.pop(key, None)
        await on_thread(self._thread, self._engine.release, str(key))

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._wake.wait()
                seats = list(self._seats.values())
                if not seats:
                    self._wake.clear()
                    continue
                await self._step(seats)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _step(self, seats: list[Seat]) -> None:
        try:
            sampled = await on_thread(self._thread, self._engine.decode_step, [str(seat.key) for seat in seats])
        except (DualPathError, ValueError, ArithmeticError) as error:
            self._blame(seats, error)
            return
        self.steps += 1
        for seat, one in zip(seats, sampled, strict=True):
            if seat.key in self._seats:
                self._advance(seat, one.token)

    def _advance(self, seat: Seat, token: int) -> None:
        if seat.generation.end_reason is None:
            seat.generation.add(token)
        seat.persist.advance(self._engine.kv_tokens(str(seat.key)))
        if self._is_complete(seat):
            del self._seats[seat.key]
            if not seat.finished.done():
                seat.finished.set_result(None)

    def _is_complete(self, seat: Seat) -> bool:
        """All tokens are there, and the KV of the last one too where it fills a block: only then can the next turn's
        hit be floor(context / block_tokens) blocks (§A.5). One turn in block_tokens pays one more step for it."""
        if seat.generation.end_reason is None:
            return False
        context = seat.generation.turn.prompt_tokens + len(seat.generation.tokens)
        fills_a_block = context % self._engine.layout.block_tokens == 0
        return not fills_a_block or self._engine.kv_tokens(str(seat.key)) >= context

    def _blame(self, seats: list[Seat], error: Exception) -> None:
        log.warning("decode step failed", turns=len(seats), error=str(error))
        for seat in seats:
            self._seats.pop(seat.key, None)
            if not seat.finished.done():
                seat.finished.set_exception(error)
