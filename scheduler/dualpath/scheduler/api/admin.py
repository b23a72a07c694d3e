"""The Admin service: what operators ask (admin.proto)."""

import time

import grpc

from dualpath.model.errors import DualPathError
from dualpath.model.ids import GroupId
from dualpath.model.turn import Role
from dualpath.scheduler.api.status import abort
from dualpath.scheduler.lifecycle.engines import GroupEntry
from dualpath.scheduler.policy.registry import policy_named
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.post import Post
from dualpath.v1 import admin_pb2, admin_pb2_grpc, agents_pb2
from dualpath.wire import agents as wire


class AdminService(admin_pb2_grpc.AdminServicer):
    """Thin: read the ledger, translate."""

    def __init__(self, post: Post, *, store_name: str) -> None:
        self._post = post
        self._store_name = store_name

    async def Status(
        self, request: admin_pb2.StatusRequest, context: "grpc.aio.ServicerContext"
    ) -> admin_pb2.CellStatus:
        return await self._status(context)

    async def DrainGroup(
        self, request: admin_pb2.DrainGroupRequest, context: "grpc.aio.ServicerContext"
    ) -> admin_pb2.CellStatus:
        try:
            self._post.cell.leases.ask_to_drain(GroupId(request.group_id), request.deadline_s)
        except DualPathError as error:
            await abort(context, error)
        return await self._status(context)

    async def SetPolicy(
        self, request: admin_pb2.SetPolicyRequest, context: "grpc.aio.ServicerContext"
    ) -> admin_pb2.CellStatus:
        try:
            self._post.cell.set_policy(policy_named(request.policy))
        except DualPathError as error:
            await abort(context, error)
        return await self._status(context)

    async def _status(self, context: "grpc.aio.ServicerContext") -> admin_pb2.CellStatus:
        try:
            return cell_status(self._post.cell, self._store_name)
        except DualPathError as error:
            await abort(context, error)
            raise


def cell_status(cell: Cell, store_name: str) -> admin_pb2.CellStatus:
    """Everything an operator sees of a cell, from one look at the ledger."""
    core, ledger = cell.core, cell.core.ledger
    counts, waiting, now = ledger.counts, ledger.waiting.all.turns, core.now_s()
    oldest = max((now - e.accepted_at_s for e in ledger.open_turns() if not e.state.is_running), default=0.0)
    return admin_pb2.CellStatus(
        cell=core.cell,
        policy=core.policy.name,
        scheduler_epoch=core.tenure.epoch,
        store=store_name,
        uptime_s=now - cell.started_at_s,
        scheduler_cpu_s=time.process_time(),
        alpha_tokens=core.limits.alpha_tokens,
        beta_tokens=core.limits.beta_tokens,
        high_mark_factor=core.limits.high_mark_factor,
        queues=admin_pb2.QueueStatus(
            prefill_fifo=len(ledger.prefill_fifo),
            decode_queue=len(ledger.decode_queue),
            group_queues={group: len(line) for group, line in ledger.group_queues.items()},
            oldest_wait_s=oldest,
        ),
        groups=[_group_status(cell, group) for group in ledger.groups.values()],
        accepted=counts.accepted,
        committed=counts.committed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        waiting=waiting,
        running=ledger.open_count - waiting,
        pe_side_reads=counts.pe_side_reads,
        de_side_reads=counts.de_side_reads,
        attempts_returned=counts.attempts_returned,
        stale_commits=counts.stale_commits,
    )


def _group_status(cell: Cell, group: GroupEntry) -> admin_pb2.GroupStatus:
    ledger, hello = cell.core.ledger, group.hello
    resource = "prefill_tokens" if hello.role is Role.PREFILL else "decode_tokens"
    engines = [
        admin_pb2.EngineStatus(
            engine_id=engine.engine_id,
            node_id=engine.node_id,
            open_turns=ledger.seats_of(resource, engine.engine_id),
            open_tokens=ledger.sum_of(resource, engine.engine_id),
            hbm_tokens=engine.hbm_tokens,
            free_hbm_tokens=max(0, engine.hbm_tokens - ledger.sum_of("hbm_tokens", engine.engine_id)),
        )
        for engine in hello.engines
    ]
    nodes = []
    for info in hello.nodes:
        status = admin_pb2.NodeStatus(
            info=agents_pb2.NodeInfo(
                node_id=info.node_id,
                address=info.address,
                buffer_bytes=info.buffer_bytes,
                snic_bytes_per_s=info.snic_bytes_per_s or 0.0,
                cnic_bytes_per_s=info.cnic_bytes_per_s or 0.0,
            )
        )
        load = group.node_loads.get(info.node_id)
        if load is not None:
            status.load.CopyFrom(wire.node_load_to_wire(load))
        nodes.append(status)
    return admin_pb2.GroupStatus(
        group_id=group.group_id,
        role=wire.role_to_wire(hello.role),
        state=group.state,
        last_report_s=cell.core.now_s() - group.reported_at_s,
        engines=engines,
        nodes=nodes,
    )
