"""Groups, nodes and engines as they introduced themselves and as they last reported (paper §6)."""

from dataclasses import dataclass, field
from enum import StrEnum

from dualpath.model.ids import EngineId, GroupId, Namespace, NodeId, TurnId
from dualpath.model.load import EngineCapacity, EngineLoad, LoadReport, NodeInfo, NodeLoad
from dualpath.model.turn import Role


class GroupState(StrEnum):
    READY = "ready"
    DRAINING = "draining"  # takes no more turns
    LOST = "lost"  # its stream ended; its lease runs


@dataclass(frozen=True, slots=True)
class GroupHello:
    """What a group said of itself, checked."""

    group_id: GroupId
    role: Role
    agent_epoch: int
    nodes: tuple[NodeInfo, ...]
    engines: tuple[EngineCapacity, ...]
    namespace: Namespace
    block_tokens: int
    tokens_max: int
    layout_hash: str
    layout: str
    model_name: str
    model_revision: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """Load given to a group that its reports do not show yet."""

    engine_id: EngineId
    tokens: int
    hbm_tokens: int
    read_node: NodeId | None
    read_tokens: int
    assignment: int | None  # None: placed, plan not made yet


@dataclass(slots=True)
class GroupEntry:
    """A group and its last report. Changed only by the ledger."""

    hello: GroupHello
    rank: int
    state: GroupState = GroupState.READY
    lease_ends_at_s: float = 0.0
    fetch_open: bool = False
    report_seq: int = -1
    reported_at_s: float = 0.0
    engine_loads: dict[EngineId, EngineLoad] = field(default_factory=dict)
    node_loads: dict[NodeId, NodeLoad] = field(default_factory=dict)
    unseen: dict[TurnId, Unseen] = field(default_factory=dict)

    @property
    def group_id(self) -> GroupId:
        return self.hello.group_id

    def take(self, report: LoadReport, now_s: float) -> bool:
        """Take a report in; an older or repeated one is dropped (False)."""
        if report.agent_epoch != self.hello.agent_epoch or report.report_seq <= self.report_seq:
            return False
        self.report_seq = report.report_seq
        self.reported_at_s = now_s
        self.engine_loads = {load.engine_id: load for load in report.engines}
        self.node_loads = {load.node_id: load for load in report.nodes}
        seen = [t for t, u in self.unseen.items() if u.assignment is not None and u.assignment <= report.seen]
        for turn_id in seen:
            del self.unseen[turn_id]
        return True
