"""The client: one stream of many turns to the active scheduler, kept up through failures.

A broken stream is dialled again, at every address given, and each unfinished turn is submitted again under the key it
had, in the order of submission: the scheduler knows the key and goes on with the same turn. A scheduler that dies, or
stands still, and another one that takes over cost time only.
"""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from dualpath.client.handle import TurnEvent, TurnHandle, TurnSpec
from dualpath.client.offers import Offers
from dualpath.model.errors import DualPathError, Refused
from dualpath.model.ids import ROOT_KEY
from dualpath.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    peers_pb2,
    peers_pb2_grpc,
    turns_pb2,
    turns_pb2_grpc,
)
from dualpath.wire import agents as wire
from dualpath.wire.outbox import MESSAGE_OPTIONS, Outbox
from dualpath.wire.rotation import GAP_S, Rotation
from dualpath.wire.status import error_from_refusal, error_from_rpc

CALL_S = 10.0  # a plain call takes at most this long
MOVE_ON = ("UNAVAILABLE", "STANDBY", "DEADLINE_EXCEEDED")  # another address may answer
SILENT_S = 3.0  # an active scheduler says something each second
FIRST_WORD_SHARE = 1 / 6  # of that patience is had with the first word, which comes at once; doubles with each round
PATIENCE_S = 120.0
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    *MESSAGE_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Client:
    """Use as `async with Client("127.0.0.1:7700") as client`.

    addresses       host:port of the scheduler, or several (a sequence, or separated by commas) of which one is active
    turns_max       turns under way at once; `submit` waits beyond that
    unreachable_s   give up when no scheduler could be reached for this long
    silent_s        leave a scheduler that says nothing for this long while turns are under way
    patience_s      offer a turn that is refused again for this long (see client.offers), then it fails with Refused
    tenant          in whose name turns are submitted
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        turns_max: int = 4096,
        unreachable_s: float = 60.0,
        silent_s: float = SILENT_S,
        patience_s: float = PATIENCE_S,
        tenant: str = "",
    ) -> None:
        self._chance = random.Random()
        self._rotation = Rotation(addresses, chance=self._chance)
        self._unreachable_s = unreachable_s
        self._silent_s = silent_s
        self._tenant = tenant
        self._heard_at_s = 0.0
        self._room = asyncio.Semaphore(turns_max)
        self._handles: dict[str, TurnHandle] = {}
        self._outgoing = Outbox[TurnHandle](2 * turns_max, _size_bytes)  # offered again, a turn may wait here twice
        self._work = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._offers = Offers(self._send, self._fail, patience_s=patience_s, chance=self._chance)
        self.reconnects = 0

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream; turns under way go on at the scheduler. Leaves no task behind."""
        await self._offers.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        for handle in list(self._handles.values()):
            handle.fail(Refused("the client was closed", retry_after_s=0.0, reason="CLOSED"))
        await self._drop_channel()

    async def submit(self, spec: TurnSpec, *, idempotency_key: str | None = None) -> TurnHandle:
        """Send a turn. Returns at once with its handle; `await handle.result()` for the outcome."""
        await self._room.acquire()
        handle = TurnHandle(idempotency_key or uuid.uuid4().hex, spec)
        self._handles[handle.idempotency_key] = handle
        self._offers.new(handle)
        self._work.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_stream(), name="dualpath client")
        return handle

    async def tokens(self, handle: TurnHandle) -> AsyncIterator[tuple[int, ...]]:
        """Live tokens straight from the decode node, from the first on; a turn that moves elsewhere is followed."""
        offset = 0
        async for event in handle.events():
            if event.result is not None:
                rest = event.result.tokens[offset:]
                if rest:
                    yield rest
                return
            if event.first_token and event.de_address:
                async for chunk_offset, chunk in self._stream_tokens(event, offset):
                    yield chunk
                    offset = chunk_offset + len(chunk)

    async def get(self, turn_id: str) -> turns_pb2.TurnRecord:
        request = turns_pb2.TurnRef(turn_id=turn_id)
        return cast(turns_pb2.TurnRecord, await self._call(lambda c: turns_pb2_grpc.TurnsStub(c).Get, request))

    async def cancel(self, turn_id: str) -> turns_pb2.TurnRecord:
        request = turns_pb2.TurnRef(turn_id=turn_id)
        return cast(turns_pb2.TurnRecord, await self._call(lambda c: turns_pb2_grpc.TurnsStub(c).Cancel, request))

    async def explain(self, turn_id: str) -> turns_pb2.Explanation:
        """Every decision about a turn, with the numbers it saw."""
        request = turns_pb2.TurnRef(turn_id=turn_id)
        return cast(turns_pb2.Explanation, await self._call(lambda c: turns_pb2_grpc.TurnsStub(c).Explain, request))

    async def status(self) -> admin_pb2.CellStatus:
        """Engines, queues and NICs of the cell."""
        request = admin_pb2.StatusRequest()
        return cast(admin_pb2.CellStatus, await self._call(lambda c: admin_pb2_grpc.AdminStub(c).Status, request))

    async def set_policy(self, policy: str) -> admin_pb2.CellStatus:
        """Swap the policy of an idle cell; raises Rejected(CELL_BUSY) otherwise."""
        request = admin_pb2.SetPolicyRequest(policy=policy)
        return cast(admin_pb2.CellStatus, await self._call(lambda c: admin_pb2_grpc.AdminStub(c).SetPolicy, request))

    # the stream

    async def _keep_stream(self) -> None:
        """Hold a stream, idle or not, and dial again when it breaks and turns are under way."""
        last_heard_s = time.monotonic()
        while True:
            if not self._handles:
                self._work.clear()
                await self._work.wait()
                last_heard_s = time.monotonic()
            channel = self._open_channel()
            heard, error = await self._run_stream(channel)
            if heard:
                self._rotation.good()
                last_heard_s = self._heard_at_s
            if self._handles and time.monotonic() - last_heard_s > self._unreachable_s:
                self._give_up(error)
            self.reconnects += 1
            await asyncio.sleep(await self._leave(channel))

    async def _run_stream(self, channel: "grpc.aio.Channel") -> tuple[bool, DualPathError | None]:
        """One stream from dialling to its end; True if anything was heard on it."""
        self._outgoing.clear()
        for handle in self._handles.values():
            if handle not in self._offers:
                self._outgoing.put(handle)
        began_s = self._heard_at_s = time.monotonic()
        call = turns_pb2_grpc.TurnsStub(channel).SubmitMany()
        reading = asyncio.create_task(self._read(call))
        others = [asyncio.create_task(self._write(call)), asyncio.create_task(self._listen())]
        error: DualPathError | None = None
        try:
            # a stream that broke shows itself in read() as well, so the writer's end alone ends nothing
            await asyncio.wait({reading, others[1]}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                error = others[1].result()
            elif not reading.cancelled():  # it is where a plain call has turned to another address
                reading.result()
        except grpc.aio.AioRpcError as ended:
            error = error_from_rpc(ended)
        finally:
            for task in (reading, *others):
                task.cancel()
            await asyncio.wait([reading, *others])
            for task in others:
                if not task.cancelled():
                    task.exception()  # seen
            call.cancel()
        return self._heard_at_s > began_s, error

    async def _read(self, call: "grpc.aio.StreamStreamCall") -> None:
        while (batch := await call.read()) is not grpc.aio.EOF:
            self._heard_at_s = time.monotonic()
            for event in batch.events:
                self._take(event)

    async def _listen(self) -> DualPathError:
        """Return when the scheduler was silent: its first word comes at once, and then one each second, news or not.

        For the first word there is less patience, since an address that stands still may be dialled several times.
        """
        began_s = self._heard_at_s
        silent_s = min(self._silent_s, self._silent_s * FIRST_WORD_SHARE * 2**self._rotation.rounds)
        while (left_s := self._heard_at_s + silent_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
            if self._heard_at_s > began_s:
                silent_s = self._silent_s
        message = f"scheduler {self._rotation.address} said nothing for {silent_s:g} s"
        return Refused(message, retry_after_s=0.0, reason="UNAVAILABLE")

    async def _write(self, call: "grpc.aio.StreamStreamCall") -> None:
        while True:
            handles = await self._outgoing.take()
            turns = [_submission(handle, self._tenant) for handle in handles if not handle.is_done]
            await call.write(turns_pb2.SubmitBatch(turns=turns))

    def _take(self, pb: turns_pb2.TurnEvent) -> None:
        handle = self._handles.get(pb.idempotency_key)
        if handle is None:
            return
        if pb.HasField("refused"):
            self._refused(handle, error_from_refusal(pb.refused))
            return
        handle.take(_event(pb))
        if handle.is_done:
            self._finish(handle)

    def _refused(self, handle: TurnHandle, error: DualPathError) -> None:
        handle.refusals += 1
        if isinstance(error, Refused):
            self._offers.refused(handle, error)
        else:
            self._fail(handle, error)

    def _send(self, handle: TurnHandle) -> None:
        self._outgoing.put(handle)

    def _fail(self, handle: TurnHandle, error: DualPathError) -> None:
        handle.fail(error)
        self._finish(handle)

    def _finish(self, handle: TurnHandle) -> None:
        if self._handles.pop(handle.idempotency_key, None) is not None:
            self._room.release()
            self._offers.ended(handle)

    def _give_up(self, error: DualPathError | None) -> None:
        why = f": {error}" if error else ""
        message = f"no scheduler reached at {', '.join(self._rotation.addresses)} for {self._unreachable_s:g} s{why}"
        for handle in list(self._handles.values()):
            self._fail(handle, Refused(message, retry_after_s=1.0, reason="UNAVAILABLE"))

    # channels and plain calls

    def _open_channel(self) -> "grpc.aio.Channel":
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._rotation.address, options=CHANNEL_OPTIONS)
        return self._channel

    async def _leave(self, channel: "grpc.aio.Channel") -> float:
        """Turn to the next address, unless that was done; returns the seconds to wait before it is dialled."""
        if channel is not self._channel:
            return GAP_S
        wait_s = self._rotation.move()
        await self._drop_channel()
        return wait_s

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, method: Callable[["grpc.aio.Channel"], Any], request: Message) -> Message:
        """A plain call, tried at each address, and again for CALL_S while a scheduler stands by; raises our errors."""
        ends_at_s, awaited, asked = time.monotonic() + CALL_S, False, set[str]()
        several = len(self._rotation.addresses) > 1
        while True:
            channel, address = self._open_channel(), self._rotation.address  # the stream turns to another one, too
            left_s = ends_at_s - time.monotonic()
            try:
                # a scheduler that stands still is left for the next one; a lone one gets all the time there is
                reply: Message = await method(channel)(request, timeout=min(left_s, SILENT_S) if several else left_s)
            except grpc.aio.AioRpcError as error:
                translated = error_from_rpc(error)
                if translated.reason not in MOVE_ON or (translated.reason == "DEADLINE_EXCEEDED" and not several):
                    raise translated from error
                asked.add(address)
                awaited = awaited or translated.reason != "UNAVAILABLE"
                wait_s = await self._leave(channel)
                nobody = not awaited and asked.issuperset(self._rotation.addresses)
                if nobody or time.monotonic() + wait_s >= ends_at_s:
                    raise translated from error
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if channel is self._channel or task is None or task.cancelling():
                    raise
                # nobody cancelled this call: it lost its channel as another one turned to the next address
            else:
                self._rotation.good()
                return reply

    async def _stream_tokens(self, event: TurnEvent, offset: int) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
        request = peers_pb2.StreamTokens(turn_id=event.turn_id, attempt=event.attempt, offset=offset)
        async with grpc.aio.insecure_channel(event.de_address, options=CHANNEL_OPTIONS) as channel:
            try:
                async for chunk in peers_pb2_grpc.PeersStub(channel).Tokens(request):
                    if chunk.tokens:
                        yield chunk.offset, tuple(chunk.tokens)
            except grpc.aio.AioRpcError:
                return  # the node went away: the result, or the next attempt's tokens, come by the scheduler


def _size_bytes(handle: TurnHandle) -> int:
    return 256 + 4 * len(handle.spec.tokens)


def _submission(handle: TurnHandle, tenant: str) -> turns_pb2.SubmitTurn:
    spec = handle.spec
    return turns_pb2.SubmitTurn(
        idempotency_key=handle.idempotency_key,
        session_id=spec.session_id,
        context_key=b"" if spec.context_key == ROOT_KEY else spec.context_key,
        context_tokens=spec.context_tokens,
        tokens=spec.tokens,
        max_new_tokens=spec.max_new_tokens,
        forced_tokens=spec.forced_tokens,
        stop_tokens=spec.stop_tokens,
        deadline_s=spec.deadline_s,
        tenant=tenant,
        priority=spec.priority,
    )


def _event(pb: turns_pb2.TurnEvent) -> TurnEvent:
    return TurnEvent(
        turn_id=pb.turn_id,
        attempt=pb.attempt,
        state=wire.state_from_wire(pb.state),
        at_s=time.monotonic(),
        first_token=pb.first_token,
        pe=pb.pe,
        de=pb.de,
        de_address=pb.de_address,
        read_side=wire.read_side_from_wire(pb.read_side),
        result=wire.result_from_wire(pb.result) if pb.HasField("result") else None,
    )
