"""The Work stream of a group (paper §6: only the leader talks to the scheduler), and of a member to its leader.

Both speak the same frames: Hello, then reports, progress, commits and handbacks up; plans and cancels down. A commit is
kept and sent again after a broken stream until it is acknowledged or called stale.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

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

PROTOCOL_VERSION = 1
FRAMES_MAX = 65536  # frames queued for a stream
REPORT_GAP_S = 0.01  # reports are at least this far apart; the first after a quiet moment goes at once
WELCOME_S = 10.0
BACKOFF_MAX_S = 1.0
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


class Uplink:
    """Keeps one stream up to the scheduler (a leader) or to the leader (a member)."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        identity: Identity,
        group: Group,
        *,
        to_leader: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._group = group
        self._to_leader = to_leader
        self._chance = chance or random.Random()
        self._frames = Outbox[agents_pb2.FromGroup](FRAMES_MAX, agents_pb2.FromGroup.ByteSize)
        self._unacked: dict[AttemptKey, agents_pb2.FromGroup] = {}
        self._changed = asyncio.Event()
        self._report_seq = 0
        self._report_s = 1.0
        self._draining = False
        self.connected = asyncio.Event()
        self.on_cancel: Callable[[AttemptKey], None] = group.cancel
        group.changed = self._regroup
        self._call: grpc.aio.StreamStreamCall | None = None

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
        if not self._frames.put(frame) and self._call is not None:
            self._call.cancel()

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
        backoff_s, turn = 0.05, 0
        while True:
            address = self._addresses[turn % len(self._addresses)]
            turn += 1
            try:
                await self._session(address)
                backoff_s = 0.05
            except grpc.aio.AioRpcError as error:
                if error.code() in FATAL_CODES:
                    raise Rejected(f"{address} refused this group: {error.details()}", reason="HELLO") from error
                log.info("stream ended", to=address, code=error.code().name, why=error.details())
            except TimeoutError:
                log.info("no welcome", to=address, waited_s=WELCOME_S)
            except asyncio.InvalidStateError:  # a write met a stream that the other end had just ended
                log.info("stream ended", to=address)
            finally:
                was_connected = self.connected.is_set()
                self.connected.clear()
            if was_connected:
                backoff_s = 0.05
            await asyncio.sleep(backoff_s * self._chance.uniform(0.5, 1.5))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _session(self, address: str) -> None:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            if self._to_leader:
                call = peers_pb2_grpc.PeersStub(channel).Member()
            else:
                call = agents_pb2_grpc.AgentsStub(channel).Work()
            self._call = call
            try:
                await call.write(agents_pb2.FromGroupBatch(frames=[agents_pb2.FromGroup(hello=self._hello())]))
                async with asyncio.timeout(WELCOME_S):
                    first = await call.read()
                if first is grpc.aio.EOF:
                    raise TimeoutError
                self._welcome(first.frames[0].welcome)
                for frame in first.frames[1:]:
                    self._take(frame)
                await self._pump(call)
            finally:
                self._call = None
                call.cancel()

    def _welcome(self, welcome: agents_pb2.Welcome) -> None:
        self._frames.clear()
        self._report_s = welcome.report_s or 1.0
        self.connected.set()
        for frame in self._unacked.values():
            self._enqueue(frame)
        if self._draining:
            self._enqueue(agents_pb2.FromGroup(draining=agents_pb2.Draining(reason="draining")))
        self._changed.set()
        log.info("welcomed", epoch=welcome.scheduler_epoch, lease_s=welcome.lease_s)

    async def _pump(self, call: "grpc.aio.StreamStreamCall") -> None:
        """Read, write and report until the stream ends; whichever ends first ends all."""
        tasks = [
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._report()),
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
            for frame in batch.frames:
                self._take(frame)

    def _take(self, frame: agents_pb2.ToGroup) -> None:
        match frame.WhichOneof("frame"):
            case "plan":
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
        if self._call is not None:
            self._call.cancel()


def _ref(key: AttemptKey) -> agents_pb2.AttemptRef:
    return agents_pb2.AttemptRef(turn_id=key.turn_id, attempt=key.attempt)


def _key(ref: agents_pb2.AttemptRef) -> AttemptKey:
    return AttemptKey(TurnId(ref.turn_id), ref.attempt)
