"""The other nodes of a leader's group: they dial the leader, which speaks to the scheduler for all (paper §6)."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from dualpath.engine_agent.leader import PROTOCOL_VERSION, Uplink
from dualpath.engine_agent.node import GroupPart
from dualpath.engine_agent.plan.notes import AttemptKey, HandbackNote, HandbackReason
from dualpath.engine_agent.report import Group
from dualpath.model.ids import EngineId, NodeId, TurnId
from dualpath.model.load import EngineCapacity, EngineLoad, NodeInfo
from dualpath.model.turn import Plan
from dualpath.v1 import agents_pb2
from dualpath.wire import agents as wire
from dualpath.wire.outbox import Outbox

MEMBER_FRAMES_MAX = 65536  # frames queued for a member
MEMBER_REPORT_S = 0.5
MEMBER_LEASE_S = 3.0  # a member that is silent for longer has left; it may come back with a Hello
log = structlog.get_logger("dualpath.members")


class RemoteMember:
    """A node of the group in another process, as the leader knows it from its frames."""

    def __init__(self, hello: agents_pb2.Hello) -> None:
        node = hello.nodes[0]
        self.info = NodeInfo(
            node_id=NodeId(node.node_id),
            address=node.address,
            buffer_bytes=node.buffer_bytes,
            snic_bytes_per_s=node.snic_bytes_per_s or None,
            cnic_bytes_per_s=node.cnic_bytes_per_s or None,
        )
        self.capacities = tuple(
            EngineCapacity(EngineId(e.engine_id), NodeId(e.node_id), e.hbm_tokens) for e in hello.engines
        )
        self.frames = Outbox[agents_pb2.ToGroup](MEMBER_FRAMES_MAX, agents_pb2.ToGroup.ByteSize)
        self.overrun = asyncio.Event()  # set where the member takes no more frames
        self._running = {_key(ref) for ref in hello.running}
        idle = tuple(EngineLoad(e.engine_id, 0, 0, e.hbm_tokens) for e in self.capacities)
        self._part = GroupPart(idle, (), 0)

    def accept(self, plan: Plan) -> None:
        self._running.add(AttemptKey(plan.turn.turn_id, plan.attempt))
        self.send(agents_pb2.ToGroup(plan=wire.plan_to_wire(plan)))

    def cancel(self, key: AttemptKey) -> None:
        if key in self._running:
            ref = agents_pb2.AttemptRef(turn_id=key.turn_id, attempt=key.attempt)
            self.send(agents_pb2.ToGroup(cancel=agents_pb2.CancelAttempt(attempt=ref)))

    def send(self, frame: agents_pb2.ToGroup) -> None:
        """Queue a frame; a member that takes none any more is cut off and may come back."""
        if not self.frames.put(frame):
            self.overrun.set()

    def running(self) -> tuple[AttemptKey, ...]:
        return tuple(self._running)

    def part(self) -> GroupPart:
        return self._part

    def take_report(self, report: agents_pb2.LoadReport) -> None:
        loads = wire.report_from_wire(report, "", 0)
        self._part = GroupPart(loads.engines, loads.nodes, loads.seen)

    def note_end(self, frame: agents_pb2.FromGroup) -> None:
        """Forget an attempt that this frame ends at the member."""
        match frame.WhichOneof("frame"):
            case "commit":
                self._running.discard(_key(frame.commit.attempt))
            case "handback":
                self._running.discard(_key(frame.handback.attempt))
            case "progress" if frame.progress.prefill_done:
                self._running.discard(_key(frame.progress.attempt))


class MemberDesk:
    """Where members of this leader's group report."""

    def __init__(self, group: Group, uplink: Uplink, *, group_id: str, layout_hash: str) -> None:
        self._group = group
        self._uplink = uplink
        self._group_id = group_id
        self._layout_hash = layout_hash

    async def serve(
        self, batches: AsyncIterator[agents_pb2.FromGroupBatch], context: "grpc.aio.ServicerContext"
    ) -> None:
        """One member's stream, from Hello to its end; what it worked on is then handed back."""
        batch = await anext(batches, None)
        first = batch.frames[0] if batch is not None and batch.frames else None
        problem = self._problem(first)
        if problem or first is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        assert first is not None
        member = RemoteMember(first.hello)
        welcome = agents_pb2.ToGroup(welcome=agents_pb2.Welcome(report_s=MEMBER_REPORT_S))
        await context.write(agents_pb2.ToGroupBatch(frames=[welcome]))
        self._group.join(member)
        log.info("member joined", node=member.info.node_id)
        writer = asyncio.create_task(_write(member, context))
        try:
            while not member.overrun.is_set() and (batch := await _next_batch(batches)) is not None:
                for frame in batch.frames:
                    self._take(member, frame)
        finally:
            writer.cancel()
            self._group.leave(member)
            for key in member.running():
                self._uplink.tell(HandbackNote(key, HandbackReason.PEER_LOST, f"node {member.info.node_id} left"))
            log.info("member left", node=member.info.node_id)

    def _problem(self, first: agents_pb2.FromGroup | None) -> str:
        if first is None or not first.HasField("hello"):
            return "the first frame of a member is Hello"
        hello = first.hello
        if hello.protocol_version != PROTOCOL_VERSION:
            return f"member speaks protocol {hello.protocol_version}, the leader {PROTOCOL_VERSION}"
        if hello.group_id != self._group_id:
            return f"member belongs to group {hello.group_id}, this leader leads {self._group_id}"
        if hello.layout_hash != self._layout_hash:
            return f"member has KV layout {hello.layout_hash}, the leader {self._layout_hash}"
        if len(hello.nodes) != 1:
            return f"a member is one node, found {len(hello.nodes)}"
        return ""

    def _take(self, member: RemoteMember, frame: agents_pb2.FromGroup) -> None:
        if frame.HasField("report"):
            member.take_report(frame.report)
            self._uplink.change()
            return
        if frame.HasField("draining"):
            return
        member.note_end(frame)
        self._uplink.forward(frame)
        if frame.HasField("commit"):  # from here on the leader keeps it until the scheduler answers
            ack = agents_pb2.CommitAck(attempt=frame.commit.attempt)
            member.send(agents_pb2.ToGroup(commit_ack=ack))


async def _next_batch(batches: AsyncIterator[agents_pb2.FromGroupBatch]) -> agents_pb2.FromGroupBatch | None:
    """The member's next frames, None once it has left or was silent for its lease."""
    try:
        async with asyncio.timeout(MEMBER_LEASE_S):
            return await anext(batches, None)
    except TimeoutError:
        return None


async def _write(member: RemoteMember, context: "grpc.aio.ServicerContext") -> None:
    while True:
        await context.write(agents_pb2.ToGroupBatch(frames=await member.frames.take()))


def _key(ref: agents_pb2.AttemptRef) -> AttemptKey:
    return AttemptKey(TurnId(ref.turn_id), ref.attempt)
