"""A group of nodes as one: the leader merges what its own node and its peers state (paper §6, groups and leaders)."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from dualpath.engine_agent.node import GroupPart
from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.model.ids import NodeId
from dualpath.model.load import EngineCapacity, NodeInfo
from dualpath.model.turn import Plan, Role


class Member(Protocol):
    """A node of the group: the leader's own, or one that dialled in."""

    @property
    def info(self) -> NodeInfo: ...

    @property
    def capacities(self) -> tuple[EngineCapacity, ...]: ...

    def accept(self, plan: Plan) -> None: ...

    def cancel(self, key: AttemptKey) -> None: ...

    def running(self) -> tuple[AttemptKey, ...]: ...

    def part(self) -> GroupPart: ...


class Group:
    """The members by node. `changed` is called when a member joins or leaves: the group must introduce itself anew."""

    def __init__(self, role: Role, own: Member, *, nodes_wanted: int = 1) -> None:
        self.role = role
        self.nodes_wanted = nodes_wanted
        self._members: dict[NodeId, Member] = {own.info.node_id: own}
        self._sent: dict[NodeId, int] = {}  # highest assignment number given to each member
        self._joined = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    @property
    def is_complete(self) -> bool:
        return len(self._members) >= self.nodes_wanted

    async def complete(self) -> None:
        """Return once all nodes of the group have joined."""
        while not self.is_complete:
            self._joined.clear()
            await self._joined.wait()

    def join(self, member: Member) -> None:
        self._members[member.info.node_id] = member
        self._joined.set()
        self.changed()

    def leave(self, member: Member) -> None:
        if self._members.get(member.info.node_id) is member:
            del self._members[member.info.node_id]
            self.changed()

    def infos(self) -> tuple[NodeInfo, ...]:
        return tuple(member.info for member in self._members.values())

    def capacities(self) -> tuple[EngineCapacity, ...]:
        return tuple(engine for member in self._members.values() for engine in member.capacities)

    def running(self) -> tuple[AttemptKey, ...]:
        return tuple(key for member in self._members.values() for key in member.running())

    def part(self) -> GroupPart:
        """The group's load. `seen` stays below the plans that a member has been given and not taken in yet, so that the
        scheduler adds those itself (counting one twice for a moment is safe, missing one is not)."""
        parts = {node: member.part() for node, member in self._members.items()}
        behind = [part.seen for node, part in parts.items() if part.seen < self._sent.get(node, 0)]
        seen = min(behind) if behind else max((0, *self._sent.values()))
        return GroupPart(
            engines=tuple(engine for part in parts.values() for engine in part.engines),
            nodes=tuple(node for part in parts.values() for node in part.nodes),
            seen=seen,
        )

    def accept(self, plan: Plan) -> bool:
        """Give a plan to the member that runs it; False if that node is not here (any more)."""
        node = plan.pair.pe_node if self.role is Role.PREFILL else plan.pair.de_node
        member = self._members.get(node)
        if member is None:
            return False
        self._sent[node] = max(plan.assignment, self._sent.get(node, 0))
        member.accept(plan)
        return True

    def cancel(self, key: AttemptKey) -> None:
        for member in self._members.values():
            member.cancel(key)
