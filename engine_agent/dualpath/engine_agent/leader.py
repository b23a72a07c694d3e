"""The Work stream of a group (paper §6: only the leader talks to the scheduler), and of a member to its leader.

Both speak the same frames: Hello, then reports, progress, commits and handbacks up; plans and cancels down. A commit is
kept and sent again after a broken stream until it is acknowledged or called stale.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from dualpath.engine_agent.plan.notes import AttemptKey, CommitNote, HandbackNote, HandbackReason, Note, ProgressNote
from dualpath.engine_agent.report import Group
from dualpath.model.errors import Rejected
from dualpath.model.ids import CellId, Namespace, TurnId
from dualpath.model.layout import BlockLayout
from dualpath.model.load import LoadReport
from dualpath.model.turn import Plan
from dualpath.v1 import agents_pb2, agents_pb2_grpc, peers_pb2_grpc
from dualpath.wire import agents as wire
from dualpath.wire.outbox import MESSAGE_OPTIONS, Outbox
from dualpath.wire.rotation import GAP_S, Rotation

PROTOCOL_VERSION = 1
FRAMES_MAX = 65536  # frames queued for a stream
REPORT_GAP_S = 0.01  # reports are at least this far apart; the first after a quiet moment goes at once
WELCOME_FIRST_S, WELCOME_MAX_S = 1.0, 10.0  # patience with a scheduler that says nothing; doubles with each round
WELCOME_LEASE_SHARE = 1 / 6  # the first patience where the lease is known
EPOCH_LEASES = 3  # a lower epoch than one seen is taken after so many leases without the higher one
FATAL_CODES = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
log = structlog.get_logger("dualpath.leader")

CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    *MESSAGE_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a group says of itself at Hello."""

    cell: CellId
    group_id: str
    agent_epoch: int
    layout: BlockLayout
    model_name: str
    model_revision: str
    namespace: Namespace
    tokens_max: int


class _StreamEnd(Exception):
    """This end has had enough of the stream, for the reason in the message; `again`: and wants another like it."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class Uplink:
    """Keeps one stream up to the scheduler (a leader) or to the leader (a member)."""

    def __init__(
        self,
        addresses: str,
        identity: Identity,
        group: Group,
        *,
        to_leader: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        self._identity = identity
        self._group = group
        self._to_leader = to_leader
        self._rotation = Rotation(addresses, chance=chance)
        self._frames = Outbox[agents_pb2.FromGroup](FRAMES_MAX, agents_pb2.FromGroup.ByteSize)
        self._unacked: dict[AttemptKey, agents_pb2.FromGroup] = {}
        self._changed = asyncio.Event()
        self._report_seq = 0
        self._report_s = 1.0
        self._lease_s = 0.0  # as the last Welcome said; 0 before the first one, and where the other end has none
        self._heard_at_s = 0.0
        self._epoch = 0  # the highest one seen
        self._draining = False
        self.connected = asyncio.Event()
        self.on_cancel: Callable[[AttemptKey], None] = group.cancel
        group.changed = self._regroup
        self._end: asyncio.Future[_StreamEnd] | None = None  # of the stream there is; set to end it

    # what the node tells

    def tell(self, note: Note) -> None:
        """Queue a note for the other end; commits survive a broken stream."""
        match note:
            case ProgressNote(key, state, read_done, prefill_done):
                progress = agents_pb2.Progress(
                    attempt=_ref(key),
                    state=wire.state_to_wire(state),
                    read_done=read_done,
                    prefill_done=prefill_done,
                )
                self.forward(agents_pb2.FromGroup(progress=progress))
            case CommitNote(key, result, new_keys):
                commit = agents_pb2.Commit(
                    attempt=_ref(key), result=wire.result_to_wire(result), new_keys=list(new_keys)
                )
                self.forward(agents_pb2.FromGroup(commit=commit))
            case HandbackNote(key, reason, message):
                handback = agents_pb2.Handback(attempt=_ref(key), reason=reason, message=message)
                self.forward(agents_pb2.FromGroup(handback=handback))
        self.change()

    def forward(self, frame: agents_pb2.FromGroup) -> None:
        """Pass a frame up; a member's frames come through here as they are."""
        if frame.HasField("commit"):
            self._unacked[_key(frame.commit.attempt)] = frame
        if self.connected.is_set():
            self._enqueue(frame)

    def _enqueue(self, frame: agents_pb2.FromGroup) -> None:
        """A stream that does not take FRAMES_MAX frames is as good as broken."""
        if not self._frames.put(frame):
            self._end_stream(f"{FRAMES_MAX} frames wait")

    def _end_stream(self, why: str, *, again: bool = False) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(_StreamEnd(why, again=again))

    def change(self) -> None:
        """Something about the load changed: report soon."""
        self._changed.set()

    def drain(self, reason: str) -> None:
        """Take no more turns."""
        self._draining = True
        self.forward(agents_pb2.FromGroup(draining=agents_pb2.Draining(reason=reason)))

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    # the stream

    async def run(self) -> None:
        """Hold the stream until cancelled; raises Rejected if the other end will never take this group as it is."""
        while True:
            address, again = self._rotation.address, False
            try:
                await self._session(address)
                log.info("stream ended", to=address)
            except grpc.aio.AioRpcError as error:
                if error.code() in FATAL_CODES:
                    raise Rejected(f"{address} refused this group: {error.details()}", reason="HELLO") from error
                log.info("stream ended", to=address, code=error.code().name, why=error.details())
            except _StreamEnd as error:
                again = error.again
                log.info("stream ended", to=address, why=str(error))
            except asyncio.InvalidStateError:  # a write met a stream that the other end had just ended
                log.info("stream ended", to=address)
            finally:
                was_connected = self.connected.is_set()
                self.connected.clear()
            if was_connected:
                self._rotation.good()
            await asyncio.sleep(GAP_S if again else self._rotation.move())

    async def _session(self, address: str) -> None:
        """One stream from dialling to its end; raises _StreamEnd where this end has had enough of it."""
        self._end = asyncio.get_running_loop().create_future()
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            if self._to_leader:
                call = peers_pb2_grpc.PeersStub(channel).Member()
            else:
                call = agents_pb2_grpc.AgentsStub(channel).Work()
            try:
                await self._until_end(self._greet(call))
                await self._until_end(self._pump(call))
            finally:
                self._end.cancel()
                self._end = None
                call.cancel()

    async def _until_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the session, until `_end_stream` at the latest."""
        assert self._end is not None
        task = asyncio.create_task(work)
        try:
            first: set[asyncio.Future[Any]] = {task, self._end}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                raise self._end.result()
            task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _greet(self, call: "grpc.aio.StreamStreamCall") -> None:
        """Hello and Welcome. A scheduler that stands still may be dialled several times, so patience begins small."""
        wait_s = min(WELCOME_MAX_S, (self._lease_s * WELCOME_LEASE_SHARE or WELCOME_FIRST_S) * 2**self._rotation.rounds)
        late = asyncio.get_running_loop().call_later(wait_s, self._end_stream, f"no welcome within {wait_s:g} s")
        try:
            await call.write(agents_pb2.FromGroupBatch(frames=[agents_pb2.FromGroup(hello=self._hello())]))
            first = await call.read()
        finally:
            late.cancel()
        if first is grpc.aio.EOF:
            raise _StreamEnd("it ended before the welcome")
        self._welcome(first.frames[0].welcome)
        for frame in first.frames[1:]:
            self._take(frame)

    def _welcome(self, welcome: agents_pb2.Welcome) -> None:
        if not self._to_leader:
            self._check_epoch(welcome.scheduler_epoch)
        self._frames.clear()
        self._report_s = welcome.report_s or 1.0
        self._lease_s = welcome.lease_s
        self._heard_at_s = time.monotonic()
        self.connected.set()
        for frame in self._unacked.values():
            self._enqueue(frame)
        if self._draining:
            self._enqueue(agents_pb2.FromGroup(draining=agents_pb2.Draining(reason="draining")))
        self._changed.set()
        log.info("welcomed", epoch=welcome.scheduler_epoch, lease_s=welcome.lease_s)

    def _check_epoch(self, epoch: int) -> None:
        """Raise _StreamEnd for a scheduler that another one has replaced.

        Not for ever: a store that lost what it had may count from a lower epoch again, and only one scheduler can hold
        its lease. The higher epoch's lease is long over when it is forgotten.
        """
        silent_s = time.monotonic() - self._heard_at_s
        if epoch < self._epoch and silent_s < EPOCH_LEASES * self._lease_s:
            raise _StreamEnd(f"its epoch is {epoch}, another scheduler had {self._epoch} {silent_s:.1f} s ago")
        self._epoch = epoch

    async def _pump(self, call: "grpc.aio.StreamStreamCall") -> None:
        """Read, write and report until the stream ends; whichever ends first ends all."""
        tasks = [
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._report()),
            *([asyncio.create_task(self._listen())] if self._lease_s else []),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _read(self, call: "grpc.aio.StreamStreamCall") -> None:
        while (batch := await call.read()) is not grpc.aio.EOF:
            self._heard_at_s = time.monotonic()
            for frame in batch.frames:
                self._take(frame)

    async def _listen(self) -> None:
        """End the stream of a scheduler that is silent for a lease: it says something each third of it, news or not."""
        while (left_s := self._heard_at_s + self._lease_s - time.monotonic()) > 0:  # noqa: ASYNC110 (no event: no news)
            await asyncio.sleep(left_s)
        raise _StreamEnd(f"it said nothing for {self._lease_s:g} s")

    def _take(self, frame: agents_pb2.ToGroup) -> None:
        match frame.WhichOneof("frame"):
            case "plan":
                self._check_epoch(frame.plan.scheduler_epoch)
                self._take_plan(wire.plan_from_wire(frame.plan))
            case "cancel":
                self.on_cancel(_key(frame.cancel.attempt))
                self._unacked.pop(_key(frame.cancel.attempt), None)
            case "commit_ack":
                self._unacked.pop(_key(frame.commit_ack.attempt), None)
            case "stale":
                key = _key(frame.stale.attempt)
                self._unacked.pop(key, None)
                self.on_cancel(key)
            case "drain":
                self.drain("asked by the scheduler")
        self._changed.set()

    def _take_plan(self, plan: Plan) -> None:
        if not self._group.accept(plan):
            key = AttemptKey(plan.turn.turn_id, plan.attempt)
            self.tell(HandbackNote(key, HandbackReason.PEER_LOST, "the node of this plan has left the group"))

    async def _write(self, call: "grpc.aio.StreamStreamCall") -> None:
        while True:
            await call.write(agents_pb2.FromGroupBatch(frames=await self._frames.take()))

    async def _report(self) -> None:
        """A report at once when something changed, and at least every report_s."""
        while True:
            try:
                async with asyncio.timeout(self._report_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            part = self._group.part()
            self._report_seq += 1
            report = LoadReport(
                group_id=self._identity.group_id,  # type: ignore[arg-type]
                agent_epoch=self._identity.agent_epoch,
                report_seq=self._report_seq,
                seen=part.seen,
                engines=part.engines,
                nodes=part.nodes,
            )
            fetch = not self._draining
            self._enqueue(agents_pb2.FromGroup(report=wire.report_to_wire(report, fetch)))
            await asyncio.sleep(REPORT_GAP_S)

    def _hello(self) -> agents_pb2.Hello:
        who = self._identity
        running = {*self._group.running(), *self._unacked}
        return agents_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            cell=who.cell,
            group_id=who.group_id,
            role=wire.role_to_wire(self._group.role),
            nodes=[
                agents_pb2.NodeInfo(
                    node_id=info.node_id,
                    address=info.address,
                    buffer_bytes=info.buffer_bytes,
                    snic_bytes_per_s=info.snic_bytes_per_s or 0.0,
                    cnic_bytes_per_s=info.cnic_bytes_per_s or 0.0,
                )
                for info in self._group.infos()
            ],
            engines=[
                agents_pb2.EngineCapacity(engine_id=e.engine_id, node_id=e.node_id, hbm_tokens=e.hbm_tokens)
                for e in self._group.capacities()
            ],
            layout_hash=who.layout.layout_hash,
            layout=str(who.layout),
            model_name=who.model_name,
            model_revision=who.model_revision,
            namespace=who.namespace,
            agent_epoch=who.agent_epoch,
            running=[_ref(key) for key in sorted(running)],
            block_tokens=who.layout.block_tokens,
            tokens_max=who.tokens_max,
        )

    def _regroup(self) -> None:
        """The group's nodes changed: say Hello again."""
        self._end_stream("the group's nodes changed", again=True)


def _ref(key: AttemptKey) -> agents_pb2.AttemptRef:
    return agents_pb2.AttemptRef(turn_id=key.turn_id, attempt=key.attempt)


def _key(ref: agents_pb2.AttemptRef) -> AttemptKey:
    return AttemptKey(TurnId(ref.turn_id), ref.attempt)
