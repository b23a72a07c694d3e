"""A PE node's attempts: offer, hit KV, forward batches, everything sent (Fig. 4, both paths, PE side)."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import structlog

from dualpath.engine_agent.plan.notes import (
    AbortReason,
    AttemptKey,
    HandbackNote,
    HandbackReason,
    Note,
    Offer,
    PeerAbort,
    PrefillDone,
    ProgressNote,
)
from dualpath.engine_agent.plan.paths import HitSource, read_path
from dualpath.engine_agent.ports import PeerDirectory, PeerLink
from dualpath.engine_agent.traffic.attempts import Attempts
from dualpath.engine_agent.traffic.buffers import BufferPool
from dualpath.engine_agent.traffic.forward import ForwardLoop, PrefillTask
from dualpath.engine_agent.traffic.reads import HitReader
from dualpath.model.errors import DualPathError, Refused, Rejected, Stale
from dualpath.model.ids import EngineId
from dualpath.model.layout import BlockLayout
from dualpath.model.load import EngineLoad
from dualpath.model.turn import Plan, ReadSide, TurnState

log = structlog.get_logger("dualpath.prefill")


class ContextLost(Exception):
    """Hit blocks are missing from storage; the context is good up to `valid_tokens`."""

    def __init__(self, valid_tokens: int) -> None:
        super().__init__(f"context is good up to token {valid_tokens} only")
        self.valid_tokens = valid_tokens


class PeerAborted(Exception):
    """The DE gave the attempt up; it has told the scheduler itself."""


@dataclass(frozen=True, slots=True)
class PrefillParts:
    """What a PE node's runner works with, built once in app.py."""

    layout: BlockLayout
    loops: Mapping[EngineId, ForwardLoop]
    buffers: BufferPool
    reads: HitReader
    peers: PeerDirectory
    hbm_tokens: int
    peer_wait_s: float


class PrefillRunner:
    """Runs plans in which one of this node's engines is the PE."""

    def __init__(self, parts: PrefillParts, *, tell: Callable[[Note], None]) -> None:
        self._parts = parts
        self._tell = tell
        self.attempts = Attempts(self._run, tell=tell)

    def accept(self, plan: Plan) -> None:
        """Start an attempt; a plan that is known already is ignored."""
        key = AttemptKey(plan.turn.turn_id, plan.attempt)
        if self.attempts.start(key, plan) and plan.read_side is ReadSide.PE:
            self._parts.reads.expect(key, plan.turn.hit_tokens)

    def engine_loads(self) -> tuple[EngineLoad, ...]:
        """seq_e and tok_e of each engine: prompts whose prefill is not finished (§6)."""
        open_turns = dict.fromkeys(self._parts.loops, 0)
        open_tokens = dict.fromkeys(self._parts.loops, 0)
        for plan in self.attempts.plans():
            open_turns[plan.pair.pe] += 1
            open_tokens[plan.pair.pe] += plan.turn.prompt_tokens
        return tuple(
            EngineLoad(engine, open_turns[engine], open_tokens[engine], self._parts.hbm_tokens)
            for engine in self._parts.loops
        )

    async def _run(self, key: AttemptKey, plan: Plan) -> Note | None:
        """One attempt from plan to PrefillDone; whatever happens, everything it holds is given back once."""
        link: PeerLink | None = None
        try:
            link = await self._parts.peers.link(plan.pair.de_node, plan.de_address)
            async with AsyncExitStack() as held:
                await self._prefill(key, plan, link, held)
            return ProgressNote(key, TurnState.PREFILLING, prefill_done=True)
        except PeerAborted as error:
            log.info("peer aborted", turn=str(key), why=str(error))
            return None
        except ContextLost as error:
            if link is not None:  # the DE commits the turn's end
                link.abort(PeerAbort(key, AbortReason.CONTEXT_LOST, str(error), error.valid_tokens))
            return None
        except asyncio.CancelledError:
            if link is not None:
                link.abort(PeerAbort(key, AbortReason.CANCELLED))
            raise
        except (DualPathError, TimeoutError, OSError) as error:
            if link is not None:
                link.abort(PeerAbort(key, AbortReason.FAILED, str(error)))
            return HandbackNote(key, _handback_reason(error), str(error) or type(error).__name__)
        finally:
            self._parts.reads.forget(key)
            if link is not None:
                link.forget(key)

    async def _prefill(self, key: AttemptKey, plan: Plan, link: PeerLink, held: AsyncExitStack) -> None:
        turn, parts = plan.turn, self._parts
        offer = await self._offer(key, link)
        path = read_path(plan.read_side, hit_tokens=turn.hit_tokens, prompt_tokens=turn.prompt_tokens)
        buffer = None
        if path.source is not HitSource.DE_BUFFER:
            nbytes = parts.layout.blocks_for(turn.prompt_tokens) * parts.layout.full_block_bytes
            buffer = await parts.buffers.reserve(nbytes)
            held.callback(parts.buffers.release, buffer)
        if path.source is HitSource.PE_BUFFER and buffer is not None:
            self._tell(ProgressNote(key, TurnState.READING))
            valid = await parts.reads.read(key, plan, buffer.memory)
            if valid < turn.hit_tokens:
                raise ContextLost(valid)
            self._tell(ProgressNote(key, TurnState.READING, read_done=True))
        task = PrefillTask(
            key=key,
            tokens=turn.tokens,
            path=path,
            link=link.transfer,
            region=offer.region,
            buffer=buffer,
            done_tokens=turn.hit_tokens,
            finished=asyncio.get_running_loop().create_future(),
        )
        loop = parts.loops[plan.pair.pe]
        held.push_async_callback(loop.retire, task)
        self._tell(ProgressNote(key, TurnState.PREFILLING))
        loop.submit(task)
        first_token = await self._while_peer_lives(key, link, task.finished)
        await task.all_sent()
        link.prefill_done(PrefillDone(key, first_token, turn.hit_tokens))

    async def _offer(self, key: AttemptKey, link: PeerLink) -> Offer:
        async with asyncio.timeout(self._parts.peer_wait_s):
            answer = await link.want(key)
        if isinstance(answer, PeerAbort):
            raise PeerAborted(answer.message or answer.reason)
        return answer

    async def _while_peer_lives(self, key: AttemptKey, link: PeerLink, finished: "asyncio.Future[int]") -> int:
        """The first token, unless the DE gives up or its link breaks before."""
        aborted = asyncio.ensure_future(link.aborted(key))
        try:
            either: set[asyncio.Future[Any]] = {finished, aborted}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                raise PeerAborted((await aborted).message)
            return finished.result()
        finally:
            aborted.cancel()


def _handback_reason(error: Exception) -> HandbackReason:
    match error:
        case Refused(reason="PEER_LOST" | "PEER_UNREACHABLE") | Stale() | TimeoutError():
            return HandbackReason.PEER_LOST
        case Refused():
            return HandbackReason.REFUSED
        case Rejected(reason="BUFFER_TOO_SMALL"):
            return HandbackReason.REFUSED
        case Rejected(reason="VOCABULARY" | "TOO_LONG"):
            return HandbackReason.INVALID
        case _:
            return HandbackReason.ENGINE_FAILED
