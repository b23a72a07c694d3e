"""A DE node's attempts: DE buffer, hit KV on the DE path, offer, prompt KV to HBM, decode, commit (Fig. 4, DE side)."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from dualpath.engine_agent.plan.notes import (
    AbortReason,
    AttemptKey,
    CommitNote,
    HandbackNote,
    HandbackReason,
    Note,
    Offer,
    PeerAbort,
    PrefillDone,
    ProgressNote,
)
from dualpath.engine_agent.ports import OfferLink, TransferBackend
from dualpath.engine_agent.traffic.attempts import Attempts
from dualpath.engine_agent.traffic.buffers import BufferPool
from dualpath.engine_agent.traffic.decode_loop import DecodeLoop, Seat
from dualpath.engine_agent.traffic.generation import BlockChain, Generation, GenerationBook
from dualpath.engine_agent.traffic.persist import Persister, TurnPersist
from dualpath.engine_agent.traffic.reads import HitReader
from dualpath.engine_agent.traffic.rendezvous import Rendezvous
from dualpath.engine_agent.traffic.threads import uninterrupted
from dualpath.model.errors import DualPathError, Refused
from dualpath.model.ids import ROOT_KEY, EngineId, Namespace
from dualpath.model.layout import BlockLayout
from dualpath.model.load import EngineLoad
from dualpath.model.turn import EndReason, Plan, ReadSide, Turn, TurnResult, TurnState

log = structlog.get_logger("dualpath.decode")


class _PeerGaveUp(Exception):
    """The PE ended the attempt and has told the scheduler itself."""


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """What a DE node's runner works with, built once in app.py."""

    layout: BlockLayout
    namespace: Namespace
    loops: Mapping[EngineId, DecodeLoop]
    buffers: BufferPool
    reads: HitReader
    transfer: TransferBackend
    persister: Persister
    generations: GenerationBook
    hbm_tokens: int
    peer_wait_s: float


class DecodeRunner:
    """Runs plans in which one of this node's engines is the DE."""

    def __init__(self, parts: DecodeParts, *, tell: Callable[[Note], None]) -> None:
        self._parts = parts
        self._tell = tell
        self.rendezvous = Rendezvous()
        self.attempts = Attempts(self._run, tell=tell)

    def accept(self, plan: Plan) -> None:
        """Start an attempt; a plan that is known already is ignored."""
        key = AttemptKey(plan.turn.turn_id, plan.attempt)
        if self.attempts.start(key, plan):
            self._parts.generations.open(key, plan.turn)
            if plan.read_side is ReadSide.DE:
                self._parts.reads.expect(key, plan.turn.hit_tokens)

    def want(self, key: AttemptKey, link: OfferLink) -> None:
        """A PE asks for the DE buffer of an attempt, perhaps before its plan came, perhaps after it ended here."""
        if self.attempts.has_ended(key):
            link.abort(PeerAbort(key, AbortReason.CANCELLED, "the attempt has ended at the DE"))
        else:
            self.rendezvous.want(key, link)

    def peer_abort(self, abort: PeerAbort) -> None:
        """The PE gives an attempt up. One that never started here, or has ended, needs nothing."""
        if not self.attempts.has_ended(abort.key):
            self.rendezvous.peer_abort(abort)

    def engine_loads(self) -> tuple[EngineLoad, ...]:
        """n_e, tok_e (prompt and generated tokens) and free HBM of each engine; HBM counts as promised (§6)."""
        loops = self._parts.loops
        turns, tokens = dict.fromkeys(loops, 0), dict.fromkeys(loops, 0)
        free = dict.fromkeys(loops, self._parts.hbm_tokens)
        for plan in self.attempts.plans():
            engine = plan.pair.de
            generation = self._parts.generations.find(AttemptKey(plan.turn.turn_id, plan.attempt))
            turns[engine] += 1
            tokens[engine] += plan.turn.prompt_tokens + (len(generation.tokens) if generation else 0)
            free[engine] -= plan.turn.total_tokens_max
        return tuple(EngineLoad(engine, turns[engine], tokens[engine], max(0, free[engine])) for engine in loops)

    async def _run(self, key: AttemptKey, plan: Plan) -> Note | None:
        """One attempt from plan to commit; whatever happens, everything it holds is given back once."""
        generation = self._parts.generations.find(key) or Generation(plan.turn)
        try:
            async with AsyncExitStack() as held:
                return await self._serve(key, plan, generation, held)
        except _PeerGaveUp as error:
            log.info("peer gave up", turn=str(key), why=str(error))
            return None
        except asyncio.CancelledError:
            self.rendezvous.abort(PeerAbort(key, AbortReason.CANCELLED))
            raise
        except (DualPathError, TimeoutError, OSError) as error:
            self.rendezvous.abort(PeerAbort(key, AbortReason.FAILED, str(error)))
            return HandbackNote(key, _handback_reason(error), str(error) or type(error).__name__)
        finally:
            self._parts.reads.forget(key)
            self.rendezvous.forget(key)
            generation.close()

    async def _serve(self, key: AttemptKey, plan: Plan, generation: Generation, held: AsyncExitStack) -> CommitNote:
        turn, parts = plan.turn, self._parts
        loop = parts.loops[plan.pair.de]
        chain = BlockChain(turn, generation, namespace=parts.namespace, block_tokens=parts.layout.block_tokens)
        persist = TurnPersist(key, chain, parts.persister, loop.copy_block)
        async with AsyncExitStack() as buffer_held:
            nbytes = parts.layout.blocks_for(turn.prompt_tokens) * parts.layout.full_block_bytes
            buffer = await parts.buffers.reserve(nbytes)
            buffer_held.callback(parts.buffers.release, buffer)
            hit_tokens = 0
            if plan.read_side is ReadSide.DE and turn.hit_tokens:
                self._tell(ProgressNote(key, TurnState.READING))
                hit_tokens = await parts.reads.read(key, plan, buffer.memory)
                if hit_tokens < turn.hit_tokens:
                    self.rendezvous.abort(PeerAbort(key, AbortReason.CONTEXT_LOST))
                    return _context_lost(key, hit_tokens)
                self._tell(ProgressNote(key, TurnState.READING, read_done=True))
            done = await self._prefilled(key, buffer.memory, hit_tokens)
            if isinstance(done, PeerAbort):
                return _context_lost(key, done.valid_context_tokens)
            generation.add(done.first_token)
            self._tell(ProgressNote(key, TurnState.DECODING))
            seat = Seat(key, generation, persist, asyncio.get_running_loop().create_future())
            held.push_async_callback(loop.release, key)
            held.push_async_callback(persist.cancel)
            size = parts.layout.full_block_bytes
            blocks = [buffer.memory[at : at + size] for at in range(0, nbytes, size)]
            await uninterrupted(loop.admit(seat, blocks, first_token=done.first_token))
        loop.join(seat)
        await seat.finished
        whole = await persist.settle()
        return _commit(key, turn, generation, chain, whole)

    async def _prefilled(self, key: AttemptKey, memory: memoryview, hit_tokens: int) -> PrefillDone | PeerAbort:
        """Open the DE buffer to the PE and wait until the whole prompt's KV is in it.

        When this returns or raises, no transfer touches `memory` any more.
        """
        parts = self._parts
        async with asyncio.timeout(parts.peer_wait_s):
            link: OfferLink = await self.rendezvous.wanted(key)
        region = parts.transfer.register(memory)
        try:
            link.offer(Offer(key, region, len(memory), hit_tokens))
            outcome = await self.rendezvous.outcome(key)
        finally:
            await uninterrupted(asyncio.wrap_future(parts.transfer.deregister(region)))
        if isinstance(outcome, PeerAbort) and outcome.reason is not AbortReason.CONTEXT_LOST:
            raise _PeerGaveUp(outcome.message or outcome.reason)
        return outcome


def _commit(key: AttemptKey, turn: Turn, generation: Generation, chain: BlockChain, whole: int) -> CommitNote:
    new_keys = tuple(chain.keys[: whole - chain.hit_blocks])
    parent = turn.hit_keys[-1] if turn.hit_keys else ROOT_KEY
    result = TurnResult(
        tokens=tuple(generation.tokens),
        end_reason=generation.end_reason or EndReason.LENGTH,
        context_key=new_keys[-1] if new_keys else parent,
        context_tokens=whole * chain.block_tokens,
        hit_tokens=turn.hit_tokens,
        miss_tokens=turn.miss_tokens,
        new_keys=new_keys,
    )
    return CommitNote(key, result, new_keys)


def _context_lost(key: AttemptKey, valid_tokens: int) -> CommitNote:
    result = TurnResult(
        tokens=(),
        end_reason=EndReason.CONTEXT_LOST,
        valid_context_tokens=valid_tokens,
        message=f"stored context is good up to token {valid_tokens} only; submit again from there",
    )
    return CommitNote(key, result)


def _handback_reason(error: Exception) -> HandbackReason:
    match error:
        case Refused(reason="PEER_LOST") | TimeoutError():
            return HandbackReason.PEER_LOST
        case Refused():
            return HandbackReason.REFUSED
        case _:
            return HandbackReason.ENGINE_FAILED
