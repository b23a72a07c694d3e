"""The Agents service: one Work stream per group, from its leader (agents.proto)."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
import structlog

from dualpath.model.errors import DualPathError, Rejected, Standby
from dualpath.model.ids import BlockKey, EngineId, GroupId, Namespace, NodeId, TurnId
from dualpath.model.load import EngineCapacity, NodeInfo
from dualpath.scheduler.api.status import abort
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.messages import (
    AttemptKey,
    GroupMessage,
    SendCancel,
    SendCommitAck,
    SendDrain,
    SendPlan,
    SendStale,
)
from dualpath.scheduler.service.post import Post
from dualpath.v1 import agents_pb2, agents_pb2_grpc
from dualpath.wire import agents as wire
from dualpath.wire.outbox import Outbox

PROTOCOL_VERSION = 1
GROUP_FRAMES_MAX = 65_536  # frames waiting for one group; a group that takes none is cut off
NODES_MAX, ENGINES_MAX = 256, 4096  # of one group
log = structlog.get_logger("dualpath.agents")


class WorkStream:
    """Frames on their way down to one group."""

    def __init__(self) -> None:
        self.frames = Outbox[agents_pb2.ToGroup](GROUP_FRAMES_MAX, agents_pb2.ToGroup.ByteSize)
        self.ended = asyncio.Event()

    def send(self, message: GroupMessage) -> None:
        if not self.frames.put(_frame_of(message)):
            self.close()

    def beat(self) -> None:
        self.frames.nudge()

    def close(self) -> None:
        self.ended.set()


class AgentsService(agents_pb2_grpc.AgentsServicer):
    """Thin: check the Hello, then pass frames to the cell."""

    def __init__(self, post: Post) -> None:
        self._post = post

    async def Work(
        self, request_iterator: AsyncIterator[agents_pb2.FromGroupBatch], context: "grpc.aio.ServicerContext"
    ) -> None:
        first = await anext(request_iterator, agents_pb2.FromGroupBatch())
        stream = WorkStream()
        try:
            cell = self._post.cell
            hello, running = self._hello(first.frames[0] if first.frames else None, cell.core.cell)
            cell.leases.join(hello, running, stream)
        except DualPathError as error:
            if not isinstance(error, Standby):  # each group asks here whenever it looks for the active one
                log.warning("group refused", why=str(error))
            await abort(context, error)
            return
        log.info("group joined", group=hello.group_id, role=hello.role.value, running=len(running))
        try:
            self._post.enter(stream)
            # once joined: who is welcomed is in the status
            await context.write(agents_pb2.ToGroupBatch(frames=[self._welcome(cell)]))
            self._take_all(cell, first.frames[1:], hello)
            await self._exchange(request_iterator, context, cell, hello, stream)
        finally:
            self._post.leave(stream)
            cell.leases.left(hello.group_id, stream)
            log.info("group's stream ended", group=hello.group_id)
        if not self._post.leads(cell):
            await abort(context, self._post.standby())

    async def _exchange(
        self,
        request_iterator: AsyncIterator[agents_pb2.FromGroupBatch],
        context: "grpc.aio.ServicerContext",
        cell: Cell,
        hello: GroupHello,
        stream: WorkStream,
    ) -> None:
        """Frames both ways until either direction or the lease ends."""
        reading = asyncio.create_task(self._read(request_iterator, cell, hello))
        writing = asyncio.create_task(_write(stream, context))
        ended = asyncio.create_task(stream.ended.wait())
        tasks: set[asyncio.Task[object]] = {reading, writing, ended}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _welcome(self, cell: Cell) -> agents_pb2.ToGroup:
        core = cell.core
        return agents_pb2.ToGroup(
            welcome=agents_pb2.Welcome(
                scheduler_epoch=core.tenure.epoch,
                lease_s=core.bounds.lease_s,
                report_s=core.bounds.report_s,
                assignment=core.ledger.last_assignment,
            )
        )

    def _hello(self, first: agents_pb2.FromGroup | None, cell: str) -> tuple[GroupHello, tuple[AttemptKey, ...]]:
        """raises Rejected naming what was found and what was wanted"""
        if first is None or not first.HasField("hello"):
            raise _unfit("frame", "the first frame is not Hello", "Hello")
        pb = first.hello
        if pb.protocol_version != PROTOCOL_VERSION:
            raise _unfit("protocol_version", f"is {pb.protocol_version}", f"{PROTOCOL_VERSION}")
        if pb.cell != cell:
            raise _unfit("cell", f"is {pb.cell!r}", f"{cell!r}")
        if not pb.group_id or pb.agent_epoch == 0:
            raise _unfit("group_id", f"is {pb.group_id!r} with epoch {pb.agent_epoch}", "a name and an epoch above 0")
        if not 1 <= len(pb.nodes) <= NODES_MAX or not all(node.address and node.node_id for node in pb.nodes):
            raise _unfit("nodes", f"{len(pb.nodes)} given", f"1 to {NODES_MAX}, each with a name and an address")
        named = {node.node_id for node in pb.nodes}
        strays = sorted({engine.node_id for engine in pb.engines} - named)
        if not 1 <= len(pb.engines) <= ENGINES_MAX or strays:
            raise _unfit("engines", f"{len(pb.engines)} given, on unnamed nodes {strays}", f"1 to {ENGINES_MAX}")
        if pb.block_tokens < 1 or not pb.namespace or not pb.layout_hash:
            raise _unfit("layout_hash", f"is {pb.layout_hash!r}, block_tokens {pb.block_tokens}", "both set")
        return _hello_of(pb), tuple(_key(ref) for ref in pb.running)

    async def _read(self, batches: AsyncIterator[agents_pb2.FromGroupBatch], cell: Cell, hello: GroupHello) -> None:
        async for batch in batches:
            cell.leases.heard(hello.group_id)
            self._take_all(cell, batch.frames, hello)

    def _take_all(self, cell: Cell, frames: Iterable[agents_pb2.FromGroup], hello: GroupHello) -> None:
        for frame in frames:
            try:
                self._take(cell, frame, hello)
            except DualPathError as error:
                log.error("frame not taken", group=hello.group_id, reason=error.reason, why=str(error))

    def _take(self, cell: Cell, frame: agents_pb2.FromGroup, hello: GroupHello) -> None:
        group_id = hello.group_id
        match frame.WhichOneof("frame"):
            case "report":
                report = wire.report_from_wire(frame.report, group_id, hello.agent_epoch)
                cell.leases.report(report, fetch=frame.report.fetch)
            case "progress":
                progress = frame.progress
                cell.settle.progress(
                    group_id,
                    _key(progress.attempt),
                    wire.state_from_wire(progress.state),
                    read_done=progress.read_done,
                    prefill_done=progress.prefill_done,
                )
            case "commit":
                new_keys = tuple(BlockKey(key) for key in frame.commit.new_keys)
                result = wire.result_from_wire(frame.commit.result, new_keys)
                cell.settle.commit(group_id, _key(frame.commit.attempt), result, new_keys)
            case "handback":
                back = frame.handback
                cell.settle.handback(group_id, _key(back.attempt), back.reason, back.message)
            case "draining":
                cell.leases.draining(group_id, hello.agent_epoch)


async def _write(stream: WorkStream, context: "grpc.aio.ServicerContext") -> None:
    while True:
        await context.write(agents_pb2.ToGroupBatch(frames=await stream.frames.take()))


def _frame_of(message: GroupMessage) -> agents_pb2.ToGroup:
    match message:
        case SendPlan(plan):
            return agents_pb2.ToGroup(plan=wire.plan_to_wire(plan))
        case SendCancel(key, reason):
            return agents_pb2.ToGroup(cancel=agents_pb2.CancelAttempt(attempt=_ref(key), reason=reason))
        case SendCommitAck(key):
            return agents_pb2.ToGroup(commit_ack=agents_pb2.CommitAck(attempt=_ref(key)))
        case SendStale(key, text):
            return agents_pb2.ToGroup(stale=agents_pb2.StaleAttempt(attempt=_ref(key), message=text))
        case SendDrain(deadline_s):
            return agents_pb2.ToGroup(drain=agents_pb2.Drain(deadline_s=deadline_s))


def _hello_of(pb: agents_pb2.Hello) -> GroupHello:
    return GroupHello(
        group_id=GroupId(pb.group_id),
        role=wire.role_from_wire(pb.role),
        agent_epoch=pb.agent_epoch,
        nodes=tuple(
            NodeInfo(
                NodeId(node.node_id),
                node.address,
                node.buffer_bytes,
                node.snic_bytes_per_s or None,
                node.cnic_bytes_per_s or None,
            )
            for node in pb.nodes
        ),
        engines=tuple(EngineCapacity(EngineId(e.engine_id), NodeId(e.node_id), e.hbm_tokens) for e in pb.engines),
        namespace=Namespace(pb.namespace),
        block_tokens=pb.block_tokens,
        tokens_max=pb.tokens_max,
        layout_hash=pb.layout_hash,
        layout=pb.layout,
        model_name=pb.model_name,
        model_revision=pb.model_revision,
    )


def _unfit(field: str, found: str, wanted: str) -> Rejected:
    return Rejected(f"{field} {found}, wanted {wanted}", field=field, reason="HELLO_MISMATCH", precondition=True)


def _ref(key: AttemptKey) -> agents_pb2.AttemptRef:
    return agents_pb2.AttemptRef(turn_id=key.turn_id, attempt=key.attempt)


def _key(ref: agents_pb2.AttemptRef) -> AttemptKey:
    return AttemptKey(TurnId(ref.turn_id), ref.attempt)
