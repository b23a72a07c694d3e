"""Load of engines, nodes and groups as decisions see it: sums over the ledger's records, corrected by the reports.

Per number the larger of the ledger and the report (docs/decisions/0003). What a decision looks at is kept as it was
made until something about it changes: of a thousand engines a fetch finds a handful changed.
"""

from collections import defaultdict

from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId
from dualpath.model.turn import Role
from dualpath.scheduler.lifecycle.engines import GroupEntry, GroupState, Unseen
from dualpath.scheduler.lifecycle.fetches import Fetches
from dualpath.scheduler.lifecycle.lines import Line
from dualpath.scheduler.policy.snapshot import EngineView, GroupView

OPEN_TOKENS_OF = {Role.PREFILL: "prefill_tokens", Role.DECODE: "decode_tokens"}


class Loads:
    """Sums of the records per (resource, holder), and the groups, engines and nodes that hold them."""

    def __init__(self) -> None:
        self.groups: dict[GroupId, GroupEntry] = {}
        self.fetches = {role: Fetches() for role in Role}
        self.sums: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.seats: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._home: dict[str, GroupEntry] = {}
        self._engine_views: dict[EngineId, EngineView] = {}
        self._group_views: dict[GroupId, GroupView] = {}
        self._ranks = 0
        self.tokens_max: int | None = None  # the longest turn that every model here takes; None without groups
        self.hbm_tokens_max: int | None = None  # of the largest decode engine; None without one

    # groups

    def join(self, group: GroupEntry) -> None:
        """A group comes, or comes back with other nodes or engines."""
        known = self.groups.get(group.group_id)
        if known is not None:
            self._forget(known)
        self.groups[group.group_id] = group
        for engine in group.hello.engines:
            self._home[engine.engine_id] = group
        for node in group.hello.nodes:
            self._home[node.node_id] = group
        self.changed(group)
        self._measure()

    def leave(self, group_id: GroupId) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            self._forget(group)
            self._measure()

    def next_rank(self) -> int:
        """A place in the rotation that no group of this scheduler's time had before."""
        self._ranks += 1
        return self._ranks

    def changed(self, group: GroupEntry) -> None:
        """Its report, its state or its members are other ones than before."""
        for engine_id in group.node_of:
            self._engine_views.pop(engine_id, None)
        self._group_views.pop(group.group_id, None)
        self.fetches[group.hello.role].look(group)

    def warm_up(self, now_s: float, slow_start_s: float) -> None:
        """Slow start: an engine that has just come counts as carrying what the others carry on average, less and less
        over `slow_start_s`. It is idle for a reason that the numbers do not show: caches are cold, and every decision
        until its next report would else fall on it.
        """
        warming = [group for group in self.groups.values() if group.is_warming]
        means = {role: self._mean_tokens(role) for role in Role} if warming else {}
        for group in warming:
            left = 1.0 - (now_s - group.joined_at_s) / slow_start_s if slow_start_s else 0.0
            group.is_warming = left > 0
            tokens = int(max(0.0, left) * means[group.hello.role])
            if tokens != group.handicap_tokens:
                group.handicap_tokens = tokens
                self.changed(group)

    def _mean_tokens(self, role: Role) -> float:
        """Open tokens of an engine that has been here for longer; 0 where there is none."""
        groups = [group for group in self.groups.values() if group.hello.role is role and not group.is_warming]
        engines = [engine_id for group in groups for engine_id in group.node_of]
        resource = OPEN_TOKENS_OF[role]
        return sum([self.sums[resource, engine_id] for engine_id in engines]) / len(engines) if engines else 0.0

    def _forget(self, group: GroupEntry) -> None:
        self.changed(group)
        self.fetches[group.hello.role].close(group)
        for holder in (*group.node_of, *group.address_of):
            if self._home.get(holder) is group:
                del self._home[holder]

    def _measure(self) -> None:
        hellos = [group.hello for group in self.groups.values()]
        self.tokens_max = min((hello.tokens_max for hello in hellos), default=None)
        engines = (engine for hello in hellos if hello.role is Role.DECODE for engine in hello.engines)
        self.hbm_tokens_max = max((engine.hbm_tokens for engine in engines), default=None)

    # amounts

    def add(self, resource: str, holder: str, amount: int) -> None:
        self.sums[resource, holder] += amount
        self.seats[resource, holder] += 1
        home = self._home.get(holder)
        if home is not None:
            self._engine_views.pop(holder, None)  # type: ignore[call-overload]
            self._group_views.pop(home.group_id, None)

    def remove(self, resource: str, holder: str, amount: int) -> None:
        self.sums[resource, holder] -= amount
        self.seats[resource, holder] -= 1
        home = self._home.get(holder)
        if home is not None:
            self._engine_views.pop(holder, None)  # type: ignore[call-overload]
            self._group_views.pop(home.group_id, None)
            self.fetches[home.hello.role].look(home)

    def give(self, group: GroupEntry, turn_id: TurnId, load: Unseen) -> None:
        """Load that the group's next reports will not show yet."""
        group.give(turn_id, load)
        self._engine_views.pop(load.engine_id, None)

    def saw(self, group: GroupEntry, turn_id: TurnId) -> None:
        """A turn has no load here any more that reports could miss."""
        load = group.saw(turn_id)
        if load is not None:
            self._engine_views.pop(load.engine_id, None)

    def queued(self, group_id: GroupId) -> None:
        """The queue of a DE group is longer or shorter than before."""
        self._group_views.pop(group_id, None)

    # what decisions see

    def engine_views(self, group: GroupEntry) -> tuple[EngineView, ...]:
        found = self._engine_views
        return tuple(
            [
                found.get(engine.engine_id) or self._engine_view(group, rank)
                for rank, engine in enumerate(group.hello.engines)
            ]
        )

    def group_views(self, queues: dict[GroupId, Line]) -> tuple[GroupView, ...]:
        """Of every DE group that takes turns."""
        found = self._group_views
        return tuple(
            [
                found.get(group.group_id) or self._group_view(group, queues.get(group.group_id))
                for group in self.groups.values()
                if group.hello.role is Role.DECODE and group.state is GroupState.READY
            ]
        )

    def read_queue_tokens(self, group: GroupEntry, node_id: NodeId) -> int:
        load = group.node_loads.get(node_id)
        reported = load.read_queue_tokens if load else 0
        return max(self.sums["read_tokens", node_id], reported + group.unseen_reads.get(node_id, 0))

    def _engine_view(self, group: GroupEntry, rank: int) -> EngineView:
        engine = group.hello.engines[rank]
        engine_id = engine.engine_id
        resource = OPEN_TOKENS_OF[group.hello.role]
        load = group.engine_loads.get(engine_id)
        unseen_turns, unseen_tokens, unseen_hbm_tokens = group.unseen_of.get(engine_id, (0, 0, 0))
        turns, tokens = self.seats[resource, engine_id], self.sums[resource, engine_id]
        free = engine.hbm_tokens - self.sums["hbm_tokens", engine_id]
        if load is not None:
            turns = max(turns, load.open_turns + unseen_turns)
            tokens = max(tokens, load.open_tokens + unseen_tokens)
            free = min(free, load.free_hbm_tokens - unseen_hbm_tokens)
        view = EngineView(engine_id, engine.node_id, rank, turns, tokens + group.handicap_tokens, free)
        self._engine_views[engine_id] = view
        return view

    def _group_view(self, group: GroupEntry, queue: Line | None) -> GroupView:
        sums = self.sums
        tokens = sum([sums["decode_tokens", engine_id] for engine_id in group.node_of])
        tokens += group.handicap_tokens * len(group.node_of)
        view = GroupView(group.group_id, group.rank, tokens, queue.tokens if queue is not None else 0)
        self._group_views[group.group_id] = view
        return view
