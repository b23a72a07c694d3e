"""Groups that come, go silent and come back (law I5). Any frame renews a lease; a lost lease returns the turns."""

from collections.abc import Iterable

from dualpath.model.errors import Rejected
from dualpath.model.ids import GroupId
from dualpath.model.load import LoadReport
from dualpath.model.turn import Role, TurnState
from dualpath.scheduler.lifecycle.engines import GroupEntry, GroupHello, GroupState
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.dispatch import Dispatch
from dualpath.scheduler.service.messages import AttemptKey, GroupLink, SendCancel, SendDrain, SendPlan
from dualpath.scheduler.service.settle import Settle


class Leases:
    """The registry of groups over time."""

    def __init__(self, core: Core, dispatch: Dispatch, settle: Settle) -> None:
        self._core = core
        self._dispatch = dispatch
        self._settle = settle
        # after a restart, turns of groups that have not come back yet are theirs for one lease
        self._orphans_until_s: float | None = core.now_s() + core.bounds.lease_s
        self._owed: dict[tuple[AttemptKey, GroupId], None] = {}

    def join(self, hello: GroupHello, running: Iterable[AttemptKey], link: GroupLink) -> GroupEntry:
        """Take a group in, or back. Raises Rejected where it does not fit the cell, naming both sides."""
        core = self._core
        known = core.ledger.groups.get(hello.group_id)
        self._check(hello, known)
        if known is not None and known.hello.agent_epoch != hello.agent_epoch:
            self._lose(known, "agent started anew")
            known = None
        now_s = core.now_s()
        group = GroupEntry(
            hello,
            rank=known.rank if known else core.ledger.loads.next_rank(),
            reported_at_s=now_s,
            joined_at_s=now_s,
        )
        if known is not None:
            group.go_on_from(known)
            # nodes or engines may differ: a member joined or left the group
            self._return_missing_engines(group)
        group.lease_ends_at_s = now_s + core.bounds.lease_s
        core.ledger.loads.join(group)
        core.ledger.loads.warm_up(now_s, core.bounds.slow_start_s)
        before = core.links.get(hello.group_id)
        if before is not None and before is not link:
            before.close()  # whichever of the two the leader listens to, it finds out and comes again
        core.links[hello.group_id] = link
        core.ledger.loads.fetches[Role.DECODE].look_all()  # turns in their queues may wait for this PE group
        self._reconcile(group, set(running), link)
        core.wake.set()
        return group

    def heard(self, group_id: GroupId) -> None:
        """A frame came: the lease runs anew."""
        group = self._core.ledger.groups.get(group_id)
        if group is not None:
            group.lease_ends_at_s = self._core.now_s() + self._core.bounds.lease_s

    def report(self, report: LoadReport, *, fetch: bool) -> None:
        """Take a load report in; with `fetch` the group asks for turns."""
        loads = self._core.ledger.loads
        group = loads.groups.get(report.group_id)
        if group is None or not group.take(report, self._core.now_s()):
            return
        if group.state is GroupState.STALE:
            group.state = GroupState.READY
        loads.changed(group)
        if fetch and group.state is GroupState.READY:
            loads.fetches[group.hello.role].open(group)
            self._core.wake.set()
        else:
            loads.fetches[group.hello.role].close(group)

    def left(self, group_id: GroupId, link: GroupLink) -> None:
        """A stream ended. The group has the rest of its lease to come back; one that drained and is empty just goes."""
        if self._core.links.get(group_id) is not link:
            return
        del self._core.links[group_id]
        group = self._core.ledger.groups.get(group_id)
        if group is None:
            return
        if group.state is GroupState.DRAINING and not any(self._core.ledger.turns_of(group_id)):
            self._lose(group, "drained")
        else:
            self._stop(group, GroupState.LOST)

    def draining(self, group_id: GroupId, agent_epoch: int) -> None:
        """The leader of that epoch takes no more turns; one that started anew since then does."""
        group = self._core.ledger.groups.get(group_id)
        if group is not None and group.hello.agent_epoch == agent_epoch:
            self._stop(group, GroupState.DRAINING)
            self._free_queue(group)

    def ask_to_drain(self, group_id: GroupId, deadline_s: float) -> None:
        """raises Rejected for an unknown group"""
        group = self._core.ledger.groups.get(group_id)
        if group is None:
            known = ", ".join(sorted(self._core.ledger.groups)) or "none"
            message = f"group {group_id!r} is unknown, groups here: {known}"
            raise Rejected(message, field="group_id", reason="UNKNOWN_GROUP")
        self.draining(group_id, group.hello.agent_epoch)
        self._core.tell(group_id, SendDrain(deadline_s))

    def sweep(self) -> None:
        """Return the turns of every group whose lease has ended; give none to one that does not report any more."""
        now, lease_s = self._core.now_s(), self._core.bounds.lease_s
        self._core.ledger.loads.warm_up(now, self._core.bounds.slow_start_s)
        for group in list(self._core.ledger.groups.values()):
            if now >= group.lease_ends_at_s:
                self._lose(group, "lease ended")
            elif group.state is GroupState.READY and now - group.reported_at_s > lease_s:
                self._stop(group, GroupState.STALE)
                self._free_queue(group)
        if self._orphans_until_s is not None and now >= self._orphans_until_s:
            self._orphans_until_s = None  # from here on every seat is in a group whose end is seen
            for entry in self._core.ledger.open_turns():
                for seat in (entry.pe, entry.de):
                    if seat is not None and seat.group_id not in self._core.ledger.groups:
                        self._settle.return_turn(entry, "group_lost", seat.group_id)
                        break

    def _lose(self, group: GroupEntry, why: str) -> None:
        """The group is gone: its running turns return, its queue goes back to the global one."""
        ledger = self._core.ledger
        self._free_queue(group)
        for entry in self._core.ledger.turns_of(group.group_id):
            self._settle.return_turn(entry, "group_lost", f"{group.group_id}: {why}")
        ledger.loads.leave(group.group_id)
        link = self._core.links.pop(group.group_id, None)
        if link is not None:  # silent, not gone: should it wake up, it must introduce itself anew
            link.close()
        self._core.wake.set()

    def _free_queue(self, group: GroupEntry) -> None:
        core = self._core
        for turn_id in list(core.ledger.group_queues.get(group.group_id, ())):
            note = core.note(core.ledger.turns[turn_id], "group", "decode_queue", f"{group.group_id} takes no more")
            core.ledger.leave_group_queue(turn_id, note)
            core.journal.append(turn_id)

    def _stop(self, group: GroupEntry, state: GroupState) -> None:
        """It takes no more turns."""
        loads = self._core.ledger.loads
        group.state = state
        loads.fetches[group.hello.role].close(group)
        loads.changed(group)

    def _return_missing_engines(self, group: GroupEntry) -> None:
        engines = {engine.engine_id for engine in group.hello.engines}
        for entry in self._core.ledger.turns_of(group.group_id):
            seats = [s for s in (entry.pe, entry.de) if s is not None and s.group_id == group.group_id]
            if any(seat.engine_id not in engines for seat in seats):
                self._settle.return_turn(entry, "engine_left", group.group_id)

    def _reconcile(self, group: GroupEntry, running: set[AttemptKey], link: GroupLink) -> None:
        """What the group works on and what it should: send missing plans again, cancel what is not its any more."""
        mine: dict[AttemptKey, TurnEntry] = {
            Core.key(entry): entry for entry in self._core.ledger.turns_of(group.group_id) if entry.state.is_running
        }
        for key in sorted(running - mine.keys(), key=lambda key: (key.turn_id, key.attempt)):
            entry = self._core.ledger.turns.get(key.turn_id)
            if not _committed_by(entry, key, group.group_id):  # its commit comes again and is acknowledged
                link.send(SendCancel(key, "not assigned to this group"))
        for key, entry in mine.items():
            epoch = entry.agent_epochs.get(group.group_id)
            if epoch != group.hello.agent_epoch:
                self._settle.return_turn(entry, "group_lost", "agent started anew")
            elif key not in running:
                done_here = entry.prefill_done and entry.de is not None and entry.de.group_id != group.group_id
                if not done_here:
                    self._owed[key, group.group_id] = None
        self._pay()

    def _pay(self) -> None:
        """Send plans again that a group missed. A plan names the partner's address, so it waits for the partner."""
        for key, group_id in list(self._owed):
            entry = self._core.ledger.turns.get(key.turn_id)
            if entry is None or entry.attempt != key.attempt or not entry.state.is_running:
                del self._owed[key, group_id]
            elif self._partner_is_here(entry):
                del self._owed[key, group_id]
                self._send_again(entry, group_id)

    def _send_again(self, entry: TurnEntry, group_id: GroupId) -> None:
        """The plan may be so new that it is not in the store yet."""
        core, attempt = self._core, entry.attempt

        def send() -> None:
            if entry.attempt == attempt and entry.state.is_running and self._partner_is_here(entry):
                entry.told_again |= entry.pe is not None and entry.pe.group_id == group_id
                core.tell(group_id, SendPlan(self._dispatch.plan_of(entry)))

        core.journal.append(entry.turn.turn_id, send)

    def _partner_is_here(self, entry: TurnEntry) -> bool:
        return all(s is None or s.group_id in self._core.ledger.groups for s in (entry.pe, entry.de))

    def _check(self, hello: GroupHello, known: GroupEntry | None) -> None:
        if known is not None and known.hello.agent_epoch > hello.agent_epoch:
            held = f"group {hello.group_id} is held by a leader with epoch {known.hello.agent_epoch}"
            message = f"{held}, found {hello.agent_epoch}"
            raise Rejected(message, field="agent_epoch", reason="STALE_EPOCH", precondition=True)
        others = [g.hello for g in self._core.ledger.groups.values() if g.group_id != hello.group_id]
        for other in others[:1]:
            for field in ("layout_hash", "namespace", "model_name", "model_revision", "block_tokens"):
                found, wanted = getattr(hello, field), getattr(other, field)
                if found != wanted:
                    text = f" ({hello.layout} against {other.layout})" if field == "layout_hash" else ""
                    message = f"{field} is {found}, the cell has {wanted}{text}"
                    raise Rejected(message, field=field, reason="HELLO_MISMATCH", precondition=True)
        taken = {node.node_id: g.group_id for g in self._core.ledger.groups.values() for node in g.hello.nodes}
        for node in hello.nodes:
            owner = taken.get(node.node_id, hello.group_id)
            if owner != hello.group_id:
                message = f"node {node.node_id} is in group {owner} already, found in {hello.group_id}"
                raise Rejected(message, field="nodes", reason="NODE_TAKEN", precondition=True)


def _committed_by(entry: TurnEntry | None, key: AttemptKey, group_id: GroupId) -> bool:
    """A PE that still runs an attempt which its DE has committed is at it for nothing."""
    return (
        entry is not None
        and entry.state is TurnState.COMMITTED
        and entry.attempt == key.attempt
        and entry.de is not None
        and entry.de.group_id == group_id
    )
