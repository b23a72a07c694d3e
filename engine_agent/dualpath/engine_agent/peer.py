"""Agents among themselves: the Peers service of a node, and the links a PE's node dials (control only, never KV)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import structlog

from dualpath.engine_agent.leader import CHANNEL_OPTIONS, PROTOCOL_VERSION
from dualpath.engine_agent.members import MemberDesk
from dualpath.engine_agent.plan.notes import AbortReason, AttemptKey, Offer, PeerAbort, PrefillDone
from dualpath.engine_agent.ports import TransferBackend, TransferLink
from dualpath.engine_agent.traffic.decode import DecodeRunner
from dualpath.engine_agent.traffic.generation import GenerationBook
from dualpath.model.errors import Refused, Rejected
from dualpath.model.ids import NodeId, TurnId
from dualpath.v1 import agents_pb2, peers_pb2, peers_pb2_grpc

DIAL_S = 5.0
PEER_FRAMES_MAX = 65536  # control frames queued for a peer
log = structlog.get_logger("dualpath.peer")


class SelfDescription:
    """What this node says of itself to peers."""

    def __init__(self, node_id: NodeId, agent_epoch: int, layout_hash: str, transfer: TransferBackend) -> None:
        self.layout_hash = layout_hash
        self.hello = peers_pb2.PeerFrame(
            hello=peers_pb2.PeerHello(
                protocol_version=PROTOCOL_VERSION,
                node_id=node_id,
                agent_epoch=agent_epoch,
                layout_hash=layout_hash,
                transfer_address=transfer.address,
                transfer_kind=transfer.kind,
            )
        )

    def check(self, hello: peers_pb2.PeerHello) -> None:
        """raises Rejected naming what was found and what was wanted"""
        if hello.protocol_version != PROTOCOL_VERSION:
            message = f"peer speaks protocol {hello.protocol_version}, this node {PROTOCOL_VERSION}"
            raise Rejected(message, reason="PROTOCOL_VERSION", precondition=True)
        if hello.layout_hash != self.layout_hash:
            message = f"peer {hello.node_id} has KV layout {hello.layout_hash}, this node {self.layout_hash}"
            raise Rejected(message, reason="LAYOUT", precondition=True)


class PeerLinks:
    """A PE node's links to DE nodes, one per address, dialled when first needed and again after a loss."""

    def __init__(self, me: SelfDescription, transfer: TransferBackend) -> None:
        self._me = me
        self._transfer = transfer
        self._links: dict[str, DialledLink] = {}
        self._dialling: dict[str, asyncio.Lock] = {}

    async def link(self, node_id: NodeId, address: str) -> "DialledLink":
        """raises Refused if the node cannot be reached, Rejected if it is of another layout or protocol"""
        async with self._dialling.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or link.is_lost:
                link = await DialledLink.dial(node_id, address, self._me, self._transfer)
                self._links[address] = link
            return link

    async def close(self) -> None:
        for link in list(self._links.values()):
            await link.close()


class DialledLink:
    """The PE's end of a Link stream and the transfer link beside it."""

    def __init__(self, node_id: NodeId, channel: "grpc.aio.Channel", call: "grpc.aio.StreamStreamCall") -> None:
        self.node_id = node_id
        self._channel = channel
        self._call = call
        self._frames: asyncio.Queue[peers_pb2.PeerFrame] = asyncio.Queue(PEER_FRAMES_MAX)
        self._offers: dict[AttemptKey, asyncio.Future[Offer | PeerAbort]] = {}
        self._aborts: dict[AttemptKey, asyncio.Future[PeerAbort]] = {}
        self._lost: Refused | None = None
        self._task: asyncio.Task[None] | None = None
        self._transfer: TransferLink | None = None

    @classmethod
    async def dial(cls, node_id: NodeId, address: str, me: SelfDescription, transfer: TransferBackend) -> "DialledLink":
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        call = peers_pb2_grpc.PeersStub(channel).Link()
        link = cls(node_id, channel, call)
        try:
            async with asyncio.timeout(DIAL_S):
                await call.write(me.hello)
                first = await call.read()
                if first is grpc.aio.EOF:
                    raise Refused(f"node {node_id} at {address} closed the link", retry_after_s=0.5)
                me.check(first.hello)
                link._transfer = await asyncio.to_thread(transfer.connect, first.hello.transfer_address)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await channel.close()
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else f"no answer in {DIAL_S} s"
            message = f"node {node_id} at {address}: {why}"
            raise Refused(message, retry_after_s=0.5, reason="PEER_UNREACHABLE") from error
        except BaseException:
            await channel.close()
            raise
        link._task = asyncio.create_task(link._run(), name=f"link {node_id}")
        return link

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    @property
    def transfer(self) -> TransferLink:
        assert self._transfer is not None, "dial() returns only links with a transfer"
        return self._transfer

    async def want(self, key: AttemptKey) -> Offer | PeerAbort:
        self._check()
        loop = asyncio.get_running_loop()
        self._offers[key], self._aborts[key] = loop.create_future(), loop.create_future()
        self._send(peers_pb2.PeerFrame(want=peers_pb2.Want(attempt=_ref(key))))
        return await self._offers[key]

    async def aborted(self, key: AttemptKey) -> PeerAbort:
        self._check()
        return await asyncio.shield(self._aborts[key])

    def prefill_done(self, done: PrefillDone) -> None:
        self._check()
        frame = peers_pb2.PrefillDone(attempt=_ref(done.key), first_token=done.first_token, hit_tokens=done.hit_tokens)
        self._send(peers_pb2.PeerFrame(prefill_done=frame))

    def abort(self, abort: PeerAbort) -> None:
        if not self.is_lost:
            self._send(abort_frame(abort))

    def forget(self, key: AttemptKey) -> None:
        for futures in (self._offers, self._aborts):
            future = futures.pop(key, None)
            if future is not None and not future.done():
                future.cancel()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _send(self, frame: peers_pb2.PeerFrame) -> None:
        try:
            self._frames.put_nowait(frame)
        except asyncio.QueueFull:
            self._call.cancel()

    async def _run(self) -> None:
        writer = asyncio.create_task(self._write())
        why = "closed"
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                self._take(frame)
            why = "closed by the peer"
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
        finally:
            writer.cancel()
            self._lose(why)
            self._call.cancel()
            self.transfer.close()
            await self._channel.close()

    async def _write(self) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # the stream has ended: _run sees that too
            while True:
                await self._call.write(await self._frames.get())

    def _take(self, frame: peers_pb2.PeerFrame) -> None:
        match frame.WhichOneof("frame"):
            case "offer":
                offer = frame.offer
                key = _key(offer.attempt)
                self._answer(key, Offer(key, offer.region, offer.region_bytes, offer.hit_tokens))
            case "abort":
                abort = abort_of(frame.abort)
                self._answer(abort.key, abort)
                future = self._aborts.get(abort.key)
                if future is not None and not future.done():
                    future.set_result(abort)

    def _answer(self, key: AttemptKey, answer: Offer | PeerAbort) -> None:
        future = self._offers.get(key)
        if future is not None and not future.done():
            future.set_result(answer)

    def _lose(self, why: str) -> None:
        self._lost = Refused(f"link to node {self.node_id} lost: {why}", retry_after_s=0.5, reason="PEER_LOST")
        for futures in (self._offers, self._aborts):
            for future in futures.values():
                if not future.done():
                    future.set_exception(self._lost)
                    future.exception()  # seen: not every future has somebody waiting
        log.info("link lost", node=self.node_id, why=why)


class AcceptedLink:
    """The DE's end of a Link stream: where offers to one PE node go."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.frames: asyncio.Queue[peers_pb2.PeerFrame] = asyncio.Queue(PEER_FRAMES_MAX)

    def offer(self, offer: Offer) -> None:
        frame = peers_pb2.Offer(
            attempt=_ref(offer.key),
            region=offer.region,
            region_bytes=offer.region_bytes,
            hit_tokens=offer.hit_tokens,
        )
        self.frames.put_nowait(peers_pb2.PeerFrame(offer=frame))

    def abort(self, abort: PeerAbort) -> None:
        self.frames.put_nowait(abort_frame(abort))


class PeersService(peers_pb2_grpc.PeersServicer):
    """What this node serves to peers and clients. A PE node has no DecodeRunner and refuses links."""

    def __init__(
        self,
        me: SelfDescription,
        decode: DecodeRunner | None,
        generations: GenerationBook,
        desk: MemberDesk | None = None,
    ) -> None:
        self._me = me
        self._decode = decode
        self._generations = generations
        self._desk = desk

    async def Link(
        self, request_iterator: AsyncIterator[peers_pb2.PeerFrame], context: "grpc.aio.ServicerContext"
    ) -> None:
        decode = self._decode
        first = await anext(request_iterator, None)
        if decode is None or first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a link starts with PeerHello, to a DE node")
        assert decode is not None and first is not None
        try:
            self._me.check(first.hello)
        except Rejected as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        link = AcceptedLink(NodeId(first.hello.node_id))
        await context.write(self._me.hello)
        writer = asyncio.create_task(_write_frames(link, context))
        try:
            async for frame in request_iterator:
                _serve_frame(decode, link, frame)
        finally:
            writer.cancel()
            decode.rendezvous.link_lost(link, "link ended")

    async def Member(
        self, request_iterator: AsyncIterator[agents_pb2.FromGroupBatch], context: "grpc.aio.ServicerContext"
    ) -> None:
        if self._desk is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this node leads no group")
        else:
            await self._desk.serve(request_iterator, context)

    async def Tokens(
        self, request: peers_pb2.StreamTokens, context: "grpc.aio.ServicerContext"
    ) -> AsyncIterator[peers_pb2.TokenChunk]:
        key = AttemptKey(TurnId(request.turn_id), request.attempt)
        generation = self._generations.find(key)
        if generation is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no generation {key} at this node")
        assert generation is not None
        offset = request.offset
        async for offset, tokens in generation.follow(request.offset):
            yield peers_pb2.TokenChunk(attempt=key.attempt, offset=offset, tokens=tokens)
            offset += len(tokens)
        yield peers_pb2.TokenChunk(attempt=key.attempt, offset=len(generation.tokens), ended=True)


async def _write_frames(link: AcceptedLink, context: "grpc.aio.ServicerContext") -> None:
    while True:
        await context.write(await link.frames.get())


def _serve_frame(decode: DecodeRunner, link: AcceptedLink, frame: peers_pb2.PeerFrame) -> None:
    match frame.WhichOneof("frame"):
        case "want":
            decode.want(_key(frame.want.attempt), link)
        case "prefill_done":
            done = frame.prefill_done
            decode.rendezvous.prefill_done(PrefillDone(_key(done.attempt), done.first_token, done.hit_tokens))
        case "abort":
            decode.peer_abort(abort_of(frame.abort))


def abort_frame(abort: PeerAbort) -> peers_pb2.PeerFrame:
    frame = peers_pb2.PeerAbort(
        attempt=_ref(abort.key),
        reason=abort.reason,
        message=abort.message,
        valid_context_tokens=abort.valid_context_tokens,
    )
    return peers_pb2.PeerFrame(abort=frame)


def abort_of(frame: peers_pb2.PeerAbort) -> PeerAbort:
    try:
        reason = AbortReason(frame.reason)
    except ValueError:
        reason = AbortReason.FAILED
    return PeerAbort(_key(frame.attempt), reason, frame.message, frame.valid_context_tokens)


def _ref(key: AttemptKey) -> agents_pb2.AttemptRef:
    return agents_pb2.AttemptRef(turn_id=key.turn_id, attempt=key.attempt)


def _key(ref: agents_pb2.AttemptRef) -> AttemptKey:
    return AttemptKey(TurnId(ref.turn_id), ref.attempt)
