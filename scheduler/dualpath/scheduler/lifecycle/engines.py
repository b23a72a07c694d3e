"""Groups, nodes and engines as they introduced themselves and as they last reported (paper §6)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from dualpath.model.ids import EngineId, GroupId, Namespace, NodeId, TurnId
from dualpath.model.load import EngineCapacity, EngineLoad, LoadReport, NodeInfo, NodeLoad
from dualpath.model.turn import Role


class GroupState(StrEnum):
    READY = "ready"
    DRAINING = "draining"  # takes no more turns
    LOST = "lost"  # its stream ended; its lease runs
    STALE = "stale"  # heard, but not of its load for a lease; it takes turns again after its next report


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


class Unseen(NamedTuple):
    """Load given to a group that its reports do not show yet."""

    engine_id: EngineId
    tokens: int
    hbm_tokens: int
    read_node: NodeId | None
    read_tokens: int
    assignment: int | None  # None: placed, plan not made yet


@dataclass(slots=True)
class GroupEntry:
    """A group and its last report. Changed only by the ledger and by `lifecycle.fetches`.

    unseen_*  what the reports do not show yet, added up: per engine (turns, tokens, HBM tokens), per node read tokens
    """

    hello: GroupHello
    rank: int
    state: GroupState = GroupState.READY
    lease_ends_at_s: float = 0.0
    fetch_open: bool = False
    report_seq: int = -1
    reported_at_s: float = 0.0
    joined_at_s: float = 0.0
    is_warming: bool = True  # in its slow start
    handicap_tokens: int = 0  # what each engine counts as carrying on top while it warms up
    engine_loads: dict[EngineId, EngineLoad] = field(default_factory=dict)
    node_loads: dict[NodeId, NodeLoad] = field(default_factory=dict)
    unseen: dict[TurnId, Unseen] = field(default_factory=dict)
    node_of: dict[EngineId, NodeId] = field(default_factory=dict)
    address_of: dict[NodeId, str] = field(default_factory=dict)
    unseen_of: dict[EngineId, tuple[int, int, int]] = field(default_factory=dict)
    unseen_reads: dict[NodeId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node_of = {engine.engine_id: engine.node_id for engine in self.hello.engines}
        self.address_of = {node.node_id: node.address for node in self.hello.nodes}

    @property
    def group_id(self) -> GroupId:
        return self.hello.group_id

    def go_on_from(self, known: "GroupEntry") -> None:
        """The same group with other nodes or engines: what its reports have not shown yet stays so."""
        self.unseen, self.report_seq, self.reported_at_s = known.unseen, known.report_seq, known.reported_at_s
        self.joined_at_s, self.is_warming = known.joined_at_s, known.is_warming
        self.handicap_tokens = known.handicap_tokens
        self.unseen_of, self.unseen_reads = known.unseen_of, known.unseen_reads

    def give(self, turn_id: TurnId, load: Unseen) -> None:
        """Load that the next reports will not show yet, in place of what this turn had here before."""
        self.saw(turn_id)
        self.unseen[turn_id] = load
        self._count(load, 1)

    def saw(self, turn_id: TurnId) -> Unseen | None:
        """The reports show this turn's load by now, or it has none here any more."""
        load = self.unseen.pop(turn_id, None)
        if load is not None:
            self._count(load, -1)
        return load

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
            self.saw(turn_id)
        return True

    def _count(self, load: Unseen, sign: int) -> None:
        turns, tokens, hbm_tokens = self.unseen_of.get(load.engine_id, (0, 0, 0))
        self.unseen_of[load.engine_id] = (
            turns + sign,
            tokens + sign * load.tokens,
            hbm_tokens + sign * load.hbm_tokens,
        )
        if load.read_node is not None and load.read_tokens:
            self.unseen_reads[load.read_node] = self.unseen_reads.get(load.read_node, 0) + sign * load.read_tokens
