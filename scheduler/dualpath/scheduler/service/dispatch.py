"""Giving turns to engines whenever a group has an open fetch: look, decide, book, and tell after the write (paper §6).

A fetch that finds nothing stays open and is served the moment something changes; one that got turns is closed, and the
group's next report opens it again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from dualpath.model.ids import GroupId, NodeId
from dualpath.model.turn import Plan, Role
from dualpath.scheduler.lifecycle.engines import GroupEntry
from dualpath.scheduler.lifecycle.records import Seat, TurnEntry
from dualpath.scheduler.policy.decisions import DecodeDecision, Placement, PrefillDecision, StopReason
from dualpath.scheduler.policy.registry import POLICIES
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.messages import SendPlan

FETCH_TURNS_MAX = 4096  # turns given in one fetch; the rest wait for the next look
_FETCH = {role: f"fetch {role}" for role in Role}  # names of the rotations over groups


class Dispatch:
    """Serves open fetches. `stops` remembers why each group's last fetch ended, for Explain."""

    def __init__(self, core: Core, expire: Callable[[], None]) -> None:
        """expire  ends the turns whose deadline has come: none of them is given to an engine"""
        self._core = core
        self._expire = expire
        self.stops: dict[GroupId, StopReason] = {}

    async def run(self) -> None:
        """Look whenever something changed."""
        while True:
            await self._core.wake.wait()
            self._core.wake.clear()
            self.pump()

    def pump(self) -> None:
        """Serve every open fetch once: PE groups, then the spread over DE groups, then each DE group."""
        self._expire()
        if len(self._core.ledger.prefill_fifo):
            for group in self._fetching(Role.PREFILL):
                self._fetch_prefill(group)
        self._spread()
        for group in self._fetching(Role.DECODE):
            self._fetch_decode(group)

    def _fetching(self, role: Role) -> list[GroupEntry]:
        """Open fetches that may find a turn now; a policy that is not one of ours may look at anything, so: all."""
        fetches = self._core.ledger.loads.fetches[role]
        if self._core.policy.name not in POLICIES:
            fetches.look_all()
        return fetches.take(self._core.rotations[_FETCH[role]])

    def _fetch_prefill(self, group: GroupEntry) -> None:
        core = self._core
        if not len(core.ledger.prefill_fifo):
            return
        for entry in core.ledger.promote(core.limits.overtakes_max):
            entry.note(core.note(entry, "promoted", "prefill_fifo", "overtaken"))
            core.journal.append(entry.turn.turn_id)
        snapshot = core.ledger.prefill_snapshot(group, rotation=core.rotations[group.group_id])
        decision: PrefillDecision = core.policy.assign_prefill(snapshot, core.limits)
        self.stops[group.group_id] = decision.stop
        nodes = group.node_of
        for placement in decision.placements[:FETCH_TURNS_MAX]:
            turn_id = placement.turn_id
            entry = core.ledger.turns[turn_id]
            seat = Seat(placement.engine_id, nodes[placement.engine_id], group.group_id)
            note = core.note(entry, "prefill", placement.engine_id, placement.reason, _inputs(placement))
            core.ledger.place_prefill(turn_id, seat, note)
            core.journal.append(turn_id)
        self._served(group, min(len(decision.placements), FETCH_TURNS_MAX))

    def _spread(self) -> None:
        """DE phase 1: the whole global queue is drained as soon as any DE group is there."""
        core = self._core
        if not len(core.ledger.decode_queue):
            return
        placements = core.policy.spread_to_groups(
            core.ledger.decode_queue_waiting(), core.ledger.group_views(), rotation=core.rotations["spread"]
        )
        for placement in placements:
            entry = core.ledger.turns[placement.turn_id]
            inputs = {"group_tokens": placement.group_tokens}
            note = core.note(entry, "group", placement.group_id, placement.reason, inputs)
            core.ledger.choose_group(placement.turn_id, placement.group_id, note)
            if core.limits.skip_ahead_turns:  # it may have room although those before it have none
                core.ledger.loads.fetches[Role.DECODE].look(core.ledger.groups[placement.group_id])
            core.journal.append(placement.turn_id)
        core.rotations["spread"] += len(placements)

    def _fetch_decode(self, group: GroupEntry) -> None:
        core = self._core
        queue = core.ledger.group_queues.get(group.group_id)
        if queue is None or not len(queue):
            return
        snapshot = core.ledger.decode_snapshot(group, rotation=core.rotations[group.group_id])
        decision: DecodeDecision = core.policy.assign_decode(snapshot, core.limits)
        self.stops[group.group_id] = decision.stop
        core.ledger.overtake(queue, decision.overtaken)
        placements = self._with_known_pe(decision.placements[:FETCH_TURNS_MAX])
        for placement in placements:
            self._plan(group, placement, decision.high_mark_tokens)
        self._served(group, len(placements))

    def _with_known_pe(self, placements: Sequence[Placement]) -> list[Placement]:
        """Up to the first turn whose PE group has not come back since a restart. That turn and those behind it keep
        their places until the group joins, or one lease is over and the turn returns.
        """
        turns, groups = self._core.ledger.turns, self._core.ledger.groups

        def is_known(placement: Placement) -> bool:
            pe = turns[placement.turn_id].pe
            return pe is None or pe.group_id in groups

        return list(takewhile(is_known, placements))

    def _plan(self, group: GroupEntry, placement: Placement, high_mark_tokens: float) -> None:
        """DE known: choose the read side, reserve everything, and send the plan to both leaders after the write."""
        core = self._core
        entry = core.ledger.turns[placement.turn_id]
        pe = entry.pe
        if pe is None:
            return
        de = Seat(placement.engine_id, group.node_of[placement.engine_id], group.group_id)
        pe_group = core.ledger.groups[pe.group_id]
        queues = {
            NodeId(pe.node_id): core.ledger.read_queue_tokens(pe_group, pe.node_id),
            NodeId(de.node_id): core.ledger.read_queue_tokens(group, de.node_id),
        }
        assignment = core.ledger.last_assignment + 1
        choice = core.policy.choose_read_side(
            pe.node_id, de.node_id, queues, hit_tokens=entry.turn.hit_tokens, rotation=assignment
        )
        inputs = _inputs(placement)
        inputs["free_hbm_tokens"] = placement.free_hbm_tokens
        inputs["high_mark_tokens"] = round(high_mark_tokens, 1)
        read_inputs: dict[str, float] = {
            "pe_read_queue_tokens": choice.pe_queue_tokens,
            "de_read_queue_tokens": choice.de_queue_tokens,
            "hit_tokens": entry.turn.hit_tokens,
        }
        notes = (
            core.note(entry, "decode", placement.engine_id, placement.reason, inputs),
            core.note(entry, "read_side", choice.side, choice.reason, read_inputs),
        )
        core.ledger.plan(placement.turn_id, de, choice.side, assignment=assignment, notes=notes)
        plan = self.plan_of(entry)
        news = core.news(entry)

        message = SendPlan(plan)

        def send() -> None:
            if entry.attempt == plan.attempt and entry.state.is_running:
                core.tell(plan.pair.pe_group, message)
                if plan.pair.de_group != plan.pair.pe_group:
                    core.tell(plan.pair.de_group, message)
            core.hub.publish(news)

        core.journal.append(placement.turn_id, send)

    def plan_of(self, entry: TurnEntry) -> Plan:
        """The plan of a running attempt. For agents a deadline is the seconds left: their clocks are their own."""
        core = self._core
        pair = core.ledger.pair_of(entry)
        turn = entry.turn
        if turn.deadline_at_s is not None:
            turn = replace(turn, deadline_at_s=max(0.001, turn.deadline_at_s - core.now_s()))
        assert entry.read_side is not None, "a planned turn has a read side"
        return Plan(
            turn=turn,
            attempt=entry.attempt,
            scheduler_epoch=core.tenure.epoch,
            assignment=entry.assignment,
            pair=pair,
            read_side=entry.read_side,
            pe_address=core.address_of(pair.pe_group, pair.pe_node),
            de_address=core.address_of(pair.de_group, pair.de_node),
        )

    def _served(self, group: GroupEntry, placed: int) -> None:
        """Rotations move on with what was placed, never with looks that found nothing: those come at any rate."""
        if placed:
            role = group.hello.role
            self._core.ledger.loads.fetches[role].close(group)
            self._core.rotations[group.group_id] += placed
            self._core.rotations[_FETCH[role]] += 1


def _inputs(placement: Placement) -> dict[str, float]:
    return {
        "open_tokens": placement.open_tokens,
        "open_turns": placement.open_turns,
        "read_queue_tokens": placement.read_queue_tokens,
    }
