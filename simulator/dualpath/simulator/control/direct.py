"""The fast control plane: the policy's own functions over plain counters, nothing stored, nothing sent.

It follows `scheduler.service.dispatch` step by step (a test compares their assignments turn for turn): PE groups with
an open fetch, then the spread over DE groups, then DE groups, each stage with a rotation of its own.

A policy of ours gets the live counters in place of a snapshot's views: they have the same fields, the law is that a
policy only reads, and within one call nothing else runs. Another policy gets real views, as the service gives them.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from dualpath.model.errors import Broken, Rejected
from dualpath.model.ids import EngineId, GroupId, NodeId
from dualpath.model.layout import BLOCK_TOKENS
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.registry import POLICIES, Policy
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)
from dualpath.scheduler.service.dispatch import FETCH_TURNS_MAX
from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.storage_nic import StorageNic
from dualpath.simulator.machine.turns import SimTurn


class _Engine:
    """An engine's counters; the fields are those of `EngineView`."""

    __slots__ = ("engine_id", "free_hbm_tokens", "group", "node_id", "open_tokens", "open_turns", "rank")

    def __init__(self, number: int, engine_id: EngineId, node_id: NodeId, hbm_tokens: int) -> None:
        self.rank, self.engine_id, self.node_id = number, engine_id, node_id
        self.group: _Group
        self.open_turns = self.open_tokens = 0
        self.free_hbm_tokens = hbm_tokens

    def view(self) -> EngineView:
        return EngineView(
            self.engine_id, self.node_id, self.rank, self.open_turns, self.open_tokens, self.free_hbm_tokens
        )


class _Group:
    """A group's counters; the fields are those of `GroupView`."""

    __slots__ = ("engines", "fetch_open", "group_id", "is_prefill", "nodes", "open_tokens", "queue", "queued_tokens",
                 "rank", "rotation")  # fmt: skip

    def __init__(self, number: int, engines: tuple[_Engine, ...], nodes: list[int], *, is_prefill: bool) -> None:
        self.rank = number
        self.group_id = GroupId(f"g{number}")
        self.is_prefill = is_prefill
        self.engines = engines
        self.nodes = nodes
        self.fetch_open = False
        self.rotation = 0
        self.open_tokens = self.queued_tokens = 0
        self.queue: deque[SimTurn] = deque()

    def view(self) -> GroupView:
        return GroupView(self.group_id, self.rank, self.open_tokens, self.queued_tokens)


class DirectControl:
    """Drives one machine with one policy; `committed` hears of each turn's end."""

    def __init__(
        self, machine: Machine, policy: Policy, limits: PolicyLimits, *, committed: Callable[[SimTurn], None]
    ) -> None:
        """raises Rejected for limits that only the scheduler itself knows how to keep"""
        if limits.skip_ahead_turns:
            message = f"skip_ahead_turns is {limits.skip_ahead_turns}, the fast driver knows 0 only; use the scheduler"
            raise Rejected(message, field="skip_ahead_turns")
        self._machine = machine
        self._policy = policy
        self._limits = limits
        self._committed = committed
        self._live = policy.name in POLICIES
        self._fifo: deque[SimTurn] = deque()
        self._decode_queue: list[SimTurn] = []
        self._pump_soon = self._look_prefill = False
        self._look_decode: set[int] = set()  # DE groups whose fetch may find a turn now
        self._open_prefill: list[int] = []  # groups with an open fetch, in order: a cluster has hundreds of groups
        self._open_decode: list[int] = []
        self._rotation_prefill = self._rotation_decode = 0
        self._rotation_spread = 0
        self._served_groups: list[int] = []
        self._assignment = 0
        self._nodes = [NodeId(f"n{node}") for node in range(len(machine.nics))]
        self._engines = [
            _Engine(
                engine,
                EngineId(f"n{machine.node_of[engine]}/g{engine % machine.shape.engines_per_node}"),
                self._nodes[machine.node_of[engine]],
                machine.costs.hbm_tokens,
            )
            for engine in range(machine.engines)
        ]
        self._named = {engine.engine_id: engine for engine in self._engines}
        self._groups = [self._group(number) for number in range(machine.groups)]
        self._group_named = {group.group_id: group for group in self._groups}
        self._prefill_groups = self._groups[: machine.prefill_groups]
        self._decode_groups = self._groups[machine.prefill_groups :]
        machine.control = self

    def _group(self, number: int) -> _Group:
        machine = self._machine
        members = tuple(engine for engine in self._engines if machine.group_of[engine.rank] == number)
        nodes = sorted({machine.node_of[engine.rank] for engine in members})
        group = _Group(number, members, nodes, is_prefill=number < machine.prefill_groups)
        for engine in members:
            engine.group = group
        return group

    # what the machine and the sessions say

    def submit(self, turn: SimTurn) -> None:
        turn.submitted_at_s = self._machine.timeline.now_s
        self._fifo.append(turn)
        if self._open_prefill:
            self._look_prefill = True
            self._pump_after_this()

    def fetch(self, group: int) -> None:
        asking = self._groups[group]
        if not asking.fetch_open:
            asking.fetch_open = True
            insort(self._open_prefill if asking.is_prefill else self._open_decode, group)
        if not asking.is_prefill:
            if asking.queue:
                self._look_decode.add(group)
                self._pump_after_this()
        elif self._fifo:
            self._look_prefill = True
            self._pump_after_this()

    def close_fetch(self, group: int) -> None:
        closing = self._groups[group]
        if closing.fetch_open:
            closing.fetch_open = False
            (self._open_prefill if closing.is_prefill else self._open_decode).remove(group)

    def read_done(self, turn: SimTurn) -> None:
        """Not asked for: a NIC's queue is looked at when a decision needs it."""

    def prefill_done(self, turn: SimTurn) -> None:
        engine = self._engines[turn.pe]
        engine.open_turns -= 1
        engine.open_tokens -= turn.prompt_tokens
        if self._fifo and self._open_prefill:
            self._look_prefill = True
            self._pump_after_this()

    def commit(self, turn: SimTurn) -> None:
        engine = self._engines[turn.de]
        prompt = turn.prompt_tokens
        engine.open_turns -= 1
        engine.open_tokens -= prompt
        engine.free_hbm_tokens += prompt + turn.max_new_tokens
        group = engine.group
        group.open_tokens -= prompt
        if group.queue and group.fetch_open:
            head = group.queue[0]  # it found no HBM, and this is the only engine that has more now
            if not self._live or engine.free_hbm_tokens >= head.prompt_tokens + head.max_new_tokens:
                self._look_decode.add(group.rank)
                self._pump_after_this()
        self._committed(turn)

    def _pump_after_this(self) -> None:
        if not self._pump_soon:
            self._pump_soon = True
            self._machine.timeline.after_this(self._pump)

    @property
    def waiting_turns(self) -> int:
        """Turns in any line."""
        return len(self._fifo) + len(self._decode_queue) + sum(len(group.queue) for group in self._decode_groups)

    def _pump(self) -> None:
        """Serve every open fetch once, where something happened that may let it find a turn."""
        self._pump_soon = False
        if self._look_prefill:
            self._look_prefill = False
            if self._fifo and self._open_prefill:
                for number in _from(self._rotation_prefill, self._open_prefill, self._open_prefill):
                    if self._fifo:
                        self._fetch_prefill(self._groups[number])
                if self._decode_queue:
                    self._spread()
        if self._look_decode:
            asking = sorted(self._look_decode)
            self._look_decode.clear()
            for number in _from(self._rotation_decode, self._open_decode, asking):
                self._fetch_decode(self._groups[number])
        if self._served_groups:
            for number in sorted(self._served_groups):
                self._machine.served(number)
            self._served_groups.clear()

    # the steps of dispatch

    def _fetch_prefill(self, group: _Group) -> None:
        machine = self._machine
        now = machine.timeline.now_s
        nics, nodes = machine.nics, self._nodes
        snapshot = PrefillSnapshot(
            self._line(self._fifo),
            self._views(group),
            {nodes[node]: nics[node].settle(now) for node in group.nodes},
            group.rotation,
        )
        placements = self._policy.assign_prefill(snapshot, self._limits).placements[:FETCH_TURNS_MAX]
        if not placements:
            return
        named, take, wait = self._named, self._fifo.popleft, self._decode_queue.append
        for placement in placements:
            turn = take()
            if turn.turn_id != placement[0]:
                raise _not_a_prefix("assign_prefill", placement[0], turn)
            engine = named[placement[1]]
            turn.pe = engine.rank
            turn.placed_at_s = now
            engine.open_turns += 1
            engine.open_tokens += turn.prompt_tokens
            wait(turn)
        self._served(group, len(placements))

    def _spread(self) -> None:
        groups = self._decode_groups
        if self._machine.modes.joint_choice:
            views = [self._with_reads(group) for group in groups]
        else:
            views = cast("list[GroupView]", groups) if self._live else [group.view() for group in groups]
        queue, self._decode_queue = self._decode_queue, []
        placements = self._policy.spread_to_groups(self._line(queue), views, rotation=self._rotation_spread)
        for turn, placement in zip(queue, placements, strict=True):
            if turn.turn_id != placement[0]:
                raise _not_a_prefix("spread_to_groups", placement[0], turn)
            group = self._group_named[placement[1]]
            if group.fetch_open and not (group.queue and self._live):  # behind a head that finds no HBM: as before
                self._look_decode.add(group.rank)
            group.queue.append(turn)
            group.queued_tokens += turn.prompt_tokens
        self._rotation_spread += len(queue)

    def _with_reads(self, group: _Group) -> GroupView:
        """A group whose storage NICs are all busy looks as loaded as if what they have to read were open there."""
        nics, now = self._machine.nics, self._machine.timeline.now_s
        reads = min(nics[node].settle(now) for node in group.nodes)
        return GroupView(group.group_id, group.rank, group.open_tokens, group.queued_tokens + reads)

    def _fetch_decode(self, group: _Group) -> None:
        snapshot = DecodeSnapshot(self._line(group.queue), self._views(group), group.rotation)
        placements = self._policy.assign_decode(snapshot, self._limits).placements[:FETCH_TURNS_MAX]
        if not placements:
            return
        now = self._machine.timeline.now_s
        named, take, begin = self._named, group.queue.popleft, self._machine.begin
        for placement in placements:
            turn = take()
            if turn.turn_id != placement[0]:
                raise _not_a_prefix("assign_decode", placement[0], turn)
            engine = named[placement[1]]
            prompt = turn.prompt_tokens
            turn.de = engine.rank
            turn.planned_at_s = now
            group.queued_tokens -= prompt
            group.open_tokens += prompt
            engine.open_turns += 1
            engine.open_tokens += prompt
            engine.free_hbm_tokens -= prompt + turn.max_new_tokens
            self._choose_side(turn, now)
            begin(turn)
        self._served(group, len(placements))

    def _choose_side(self, turn: SimTurn, now: float) -> None:
        machine = self._machine
        pe_node, de_node = machine.node_of[turn.pe], machine.node_of[turn.de]
        pe_id, de_id = self._nodes[pe_node], self._nodes[de_node]
        pe_nic, de_nic = machine.nics[pe_node], machine.nics[de_node]
        self._assignment += 1
        modes, hit = machine.modes, turn.hit_tokens
        pe_queue, de_queue = pe_nic.settle(now), de_nic.settle(now)
        if modes.weigh_nics:
            de_queue = round(de_queue * pe_nic.tokens_per_s / de_nic.tokens_per_s)
        turn.side = self._policy.choose_read_side(
            pe_id, de_id, {pe_id: pe_queue, de_id: de_queue}, hit_tokens=hit, rotation=self._assignment
        ).side
        if not modes.transfers:
            return
        mine, other = (pe_nic, de_nic) if turn.side is ReadSide.PE else (de_nic, pe_nic)
        if modes.split_reads:
            turn.split_tokens = split_evenly(hit, mine, other)
            other.queue_tokens += turn.split_tokens
        mine.queue_tokens += hit - turn.split_tokens

    def _served(self, group: _Group, placed: int) -> None:
        self.close_fetch(group.rank)
        group.rotation += placed
        if group.is_prefill:
            self._rotation_prefill += 1
        else:
            self._rotation_decode += 1
        self._served_groups.append(group.rank)

    def _line(self, turns: Sequence[SimTurn]) -> Sequence[WaitingTurn]:
        if self._live:
            return cast("Sequence[WaitingTurn]", turns)
        return tuple(WaitingTurn(t.turn_id, t.arrival, t.hit_tokens, t.miss_tokens, t.max_new_tokens) for t in turns)

    def _views(self, group: _Group) -> tuple[EngineView, ...]:
        if self._live:
            return cast("tuple[EngineView, ...]", group.engines)
        return tuple(engine.view() for engine in group.engines)


def split_evenly(hit: int, mine: StorageNic, other: StorageNic) -> int:
    """Tokens of the hit, in whole blocks, for the other side, so that both queues end at the same time."""
    ahead_s = other.queue_tokens / other.tokens_per_s - mine.queue_tokens / mine.tokens_per_s
    share = (hit / mine.tokens_per_s - ahead_s) / (1 / mine.tokens_per_s + 1 / other.tokens_per_s)
    return min(max(0, int(share)), hit) // BLOCK_TOKENS * BLOCK_TOKENS


def _from(rotation: int, fetching: list[int], asking: list[int]) -> list[int]:
    """`asking`, beginning at that group of `fetching` at which the rotation stands. Both are in order."""
    if len(asking) < 2:
        return list(asking)
    first = fetching[rotation % len(fetching)]
    return [number for number in asking if number >= first] + [number for number in asking if number < first]


def _not_a_prefix(function: str, turn_id: str, head: SimTurn) -> Broken:
    return Broken(f"{function} placed turn {turn_id}, the head of the line is {head.turn_id}", reason="POLICY")
