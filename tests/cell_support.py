"""A scheduler cell on the memory store, with a clock that tests move and groups that are lists of messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from dualpath.model.ids import ROOT_KEY, BlockKey, EngineId, GroupId, Namespace, NodeId, SessionId
from dualpath.model.load import EngineCapacity, EngineLoad, LoadReport, NodeInfo, NodeLoad
from dualpath.model.turn import EndReason, Plan, Role, TurnResult
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.policy.registry import policy_named
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.intake import Submission
from dualpath.scheduler.service.messages import AttemptKey, GroupMessage, SendPlan
from dualpath.scheduler.stores.memory import MemoryStore


class ManualClock:
    """Time that stands still until a test moves it; sleepers only yield."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class CountingIds:
    """t1, t2, ..."""

    def __init__(self) -> None:
        self.count = 0

    def turn_id(self) -> str:
        self.count += 1
        return f"t{self.count}"


@dataclass
class FakeGroup:
    """A group of one node: what the scheduler told it, and reports to give."""

    name: str
    role: Role
    engines: int = 1
    hbm_tokens: int = 10_000
    epoch: int = 1
    told: list[GroupMessage] = field(default_factory=list)
    closed: int = 0
    report_seq: int = 0

    def send(self, message: GroupMessage) -> None:
        self.told.append(message)

    def close(self) -> None:
        self.closed += 1

    @property
    def plans(self) -> list[Plan]:
        return [message.plan for message in self.told if isinstance(message, SendPlan)]

    def hello(self) -> GroupHello:
        node = NodeId(f"{self.name}-n")
        return GroupHello(
            group_id=GroupId(self.name),
            role=self.role,
            agent_epoch=self.epoch,
            nodes=(NodeInfo(node, f"{self.name}:1", 1 << 20),),
            engines=tuple(
                EngineCapacity(EngineId(f"{node}/g{rank}"), node, self.hbm_tokens) for rank in range(self.engines)
            ),
            namespace=Namespace("default/m/r/f/l"),
            block_tokens=64,
            tokens_max=100_000,
            layout_hash="l",
            layout="layout",
            model_name="m",
            model_revision="r",
        )

    def report(self, *, seen: int = 1 << 30, read_queue_tokens: int = 0) -> LoadReport:
        """An idle group's report; the scheduler's own ledger then decides."""
        self.report_seq += 1
        hello = self.hello()
        return LoadReport(
            group_id=hello.group_id,
            agent_epoch=self.epoch,
            report_seq=self.report_seq,
            seen=seen,
            engines=tuple(EngineLoad(e.engine_id, 0, 0, e.hbm_tokens) for e in hello.engines),
            nodes=tuple(NodeLoad(node.node_id, read_queue_tokens) for node in hello.nodes),
        )


@dataclass
class Bench:
    """A running cell and its surroundings."""

    cell: Cell
    store: MemoryStore
    clock: ManualClock
    groups: dict[str, FakeGroup] = field(default_factory=dict)

    def join(self, group: FakeGroup, *running: AttemptKey) -> FakeGroup:
        self.cell.leases.join(group.hello(), running, group)
        self.groups[group.name] = group
        return group

    async def fetch(self, group: FakeGroup) -> None:
        """The group reports and asks for turns; returns when everything decided is in the store."""
        self.cell.leases.report(group.report(), fetch=True)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        await self.cell.core.journal.drained()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def running_cell(
    *,
    store: MemoryStore | None = None,
    clock: ManualClock | None = None,
    policy: str = "dualpath",
    limits: PolicyLimits | None = None,
    bounds: ServiceBounds | None = None,
    owner: str = "test",
    ids: CountingIds | None = None,
) -> AsyncIterator[Bench]:
    clock = clock or ManualClock()
    store = store or MemoryStore(clock)
    cell = await Cell.open(
        store,
        cell="test",
        owner=owner,
        clock=clock,
        ids=ids or CountingIds(),
        policy=policy_named(policy),
        limits=limits or PolicyLimits(alpha_tokens=1000, beta_tokens=5000),
        bounds=bounds or ServiceBounds(),
    )
    task = asyncio.create_task(cell.run())
    try:
        yield Bench(cell, store, clock)
    finally:
        task.cancel()
        await asyncio.wait([task])


def submission(
    key: str,
    *,
    tokens: int = 10,
    new: int = 4,
    context: tuple[BlockKey, int] = (ROOT_KEY, 0),
    deadline_s: float = 0.0,
    tenant: str = "",
    priority: int = 0,
) -> Submission:
    return Submission(
        key,
        SessionId("s"),
        context[0],
        context[1],
        tuple(range(tokens)),
        new,
        deadline_s=deadline_s,
        tenant=tenant,
        priority=priority,
    )


def committed(tokens: int = 4) -> TurnResult:
    return TurnResult(tuple(range(tokens)), EndReason.LENGTH)
