"""The ledger: every turn, every line, and a record for everything reserved (laws I1, I2, I4, I5).

Each mutating method moves one turn along the table and opens or closes its records; `lifecycle.unstored` says what of
that is not in the store yet. Counters are sums over records, kept as they change; `recount` computes them anew.

    resource        holder    from                       until
    prefill_tokens  PE        PE assigned                prefill done
    decode_tokens   DE        plan                       end
    hbm_tokens      DE        plan (prompt + max new)    end
    read_tokens     node      plan (hit tokens)          read done
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dualpath.model.errors import Broken
from dualpath.model.ids import GroupId, NodeId, TurnId
from dualpath.model.turn import Pair, ReadSide, Role, Turn, TurnResult, TurnState
from dualpath.scheduler.lifecycle.changes import ChangeSet, DropIdempotency, DropTurn, StoredCell
from dualpath.scheduler.lifecycle.contexts import ContextIndex
from dualpath.scheduler.lifecycle.engines import GroupEntry, GroupState, Unseen
from dualpath.scheduler.lifecycle.lines import Line
from dualpath.scheduler.lifecycle.loads import Loads
from dualpath.scheduler.lifecycle.order import FairOrder, Oldest, Order
from dualpath.scheduler.lifecycle.records import DecisionNote, Held, Seat, TurnEntry
from dualpath.scheduler.lifecycle.table import Event, next_state
from dualpath.scheduler.lifecycle.unstored import count_as_stored, unstored
from dualpath.scheduler.lifecycle.waiting import WaitingSums
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    GroupView,
    PrefillSnapshot,
    WaitingTurn,
)

PREFILL_FIFO, DECODE_QUEUE, GROUP_QUEUE = "prefill_fifo", "decode_queue", "group_queue:"


@dataclass(slots=True)
class Counts:
    """Turns by how they ended, and what happened on the way."""

    accepted: int = 0
    committed: int = 0
    failed: int = 0
    cancelled: int = 0
    pe_side_reads: int = 0
    de_side_reads: int = 0
    attempts_returned: int = 0
    stale_commits: int = 0


class Ledger:
    """The scheduler's working copy of a cell. Nothing here waits or does I/O."""

    def __init__(self, *, contexts_max: int = 1 << 20, order: Order = Order.FIFO) -> None:
        self.turns: dict[TurnId, TurnEntry] = {}
        self.idempotency: dict[str, TurnId] = {}
        self.prefill_fifo = Line(PREFILL_FIFO)
        self.decode_queue = Line(DECODE_QUEUE)
        self.group_queues: dict[GroupId, Line] = {}
        self.loads = Loads()
        self.contexts = ContextIndex(contexts_max=contexts_max)
        self.records: dict[str, int] = {}
        self.counts = Counts()
        self.waiting = WaitingSums()
        self._fair = FairOrder() if order is Order.FAIR else None
        self._oldest = Oldest()  # of the prefill FIFO; kept in the fair order only
        self._deadlines: list[tuple[float, TurnId]] = []  # a heap; turns that have ended stay in it until their time
        self._seated: defaultdict[str, dict[TurnId, None]] = defaultdict(dict)  # per group, unfinished turns
        self._dropped: dict[TurnId, str] = {}  # and their idempotency keys, until the store has forgotten them too
        self._open: dict[TurnId, None] = {}
        self._ended: dict[TurnId, None] = {}
        self.last_arrival = 0
        self.last_assignment = 0

    # looking

    def sum_of(self, resource: str, holder: str) -> int:
        return self.loads.sums[resource, holder]

    def seats_of(self, resource: str, holder: str) -> int:
        return self.loads.seats[resource, holder]

    @property
    def groups(self) -> dict[GroupId, GroupEntry]:
        """By name, in the order in which they came. Changed by `loads` only."""
        return self.loads.groups

    def turns_of(self, group_id: GroupId) -> list[TurnEntry]:
        """Unfinished turns whose PE or DE is in this group, in the order of their arrival."""
        seated = [self.turns[turn_id] for turn_id in self._seated.get(group_id, ())]
        return sorted(seated, key=lambda entry: entry.turn.arrival)

    def past_deadline(self, now_s: float) -> list[TurnEntry]:
        """Unfinished turns whose deadline has come; each is named once."""
        past: list[TurnEntry] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            turn_id = heapq.heappop(self._deadlines)[1]
            if turn_id in self._open:
                past.append(self.turns[turn_id])
        return past

    def open_turns(self) -> Iterator[TurnEntry]:
        """Every unfinished turn, oldest acceptance first."""
        return (self.turns[turn_id] for turn_id in tuple(self._open))

    def ended_turns(self) -> Iterator[TurnEntry]:
        return (self.turns[turn_id] for turn_id in tuple(self._ended))

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def ended_count(self) -> int:
        return len(self._ended)

    def ready_groups(self, role: Role) -> list[GroupEntry]:
        return [g for g in self.groups.values() if g.hello.role is role and g.state is GroupState.READY]

    def line_of(self, entry: TurnEntry) -> Line | None:
        state = entry.state
        if state is TurnState.PREFILL_FIFO:
            return self.prefill_fifo
        if state is TurnState.DECODE_QUEUE:
            return self.decode_queue
        return self.group_queues[GroupId(str(entry.de_group))] if state is TurnState.GROUP_QUEUE else None

    # snapshots for the policy

    def prefill_snapshot(self, group: GroupEntry, *, rotation: int) -> PrefillSnapshot:
        queues = {node_id: self.loads.read_queue_tokens(group, node_id) for node_id in group.address_of}
        return PrefillSnapshot(self.prefill_fifo.waiting(), self.loads.engine_views(group), queues, rotation)

    def decode_snapshot(self, group: GroupEntry, *, rotation: int) -> DecodeSnapshot:
        return DecodeSnapshot(self._group_queue(group.group_id).waiting(), self.loads.engine_views(group), rotation)

    def group_views(self) -> tuple[GroupView, ...]:
        return self.loads.group_views(self.group_queues)

    def decode_queue_waiting(self) -> tuple[WaitingTurn, ...]:
        return tuple(self.decode_queue.waiting())

    def read_queue_tokens(self, group: GroupEntry, node_id: NodeId) -> int:
        return self.loads.read_queue_tokens(group, node_id)

    # order

    def tag(self, tenant: str, priority: int, prompt_tokens: int) -> int:
        """What a turn that is accepted now gets as its tag."""
        return self._fair.tag(tenant, priority, prompt_tokens) if self._fair is not None else 0

    def overtaken(self, entry: TurnEntry) -> int:
        """How many turns that came later have left the prefill FIFO before the oldest one in it: 0 for any other."""
        if self._oldest_waiting() is not entry:
            return 0
        return max(0, self.last_arrival - entry.turn.arrival - (len(self.prefill_fifo) - 1))

    def promote(self, overtakes_max: int) -> list[TurnEntry]:
        """Put the oldest turns to the head of the prefill FIFO where too many later ones went before them."""
        promoted: list[TurnEntry] = []
        while self._fair is not None and (entry := self._oldest_waiting()) is not None:
            if entry.promoted or self.overtaken(entry) < overtakes_max:
                break
            self._leave(entry)
            entry.promoted = True
            self._join(self.prefill_fifo, entry)
            promoted.append(entry)
        return promoted

    def overtake(self, line: Line, counts: Sequence[tuple[TurnId, int]]) -> None:
        """Turns of a group's queue were passed over by others behind them."""
        for turn_id, count in counts:
            line.overtake(self.turns[turn_id].line_key, count)

    def _oldest_waiting(self) -> TurnEntry | None:
        turn_id = self._oldest.first()
        return None if turn_id is None else self.turns[turn_id]

    # moving a turn along

    def accept(self, turn: Turn, *, now_s: float) -> TurnEntry:
        entry = TurnEntry(turn, TurnState.PREFILL_FIFO, accepted_at_s=now_s)
        entry.note(DecisionNote(1, 0.0, "accepted", PREFILL_FIFO, "accepted", {"arrival": turn.arrival}))
        self.turns[turn.turn_id] = entry
        self._open_turn(turn)
        self.last_arrival = max(self.last_arrival, turn.arrival)
        self.counts.accepted += 1
        if turn.idempotency_key:
            self.idempotency[turn.idempotency_key] = turn.turn_id
        self._join(self.prefill_fifo, entry)
        return entry

    def place_prefill(self, turn_id: TurnId, pe: Seat, note: DecisionNote) -> None:
        entry = self._entry(turn_id)
        self._leave(entry)
        entry.state = next_state(entry.state, Event.PE_ASSIGNED)
        entry.pe = pe
        entry.note(note)
        if self._fair is not None:
            self._fair.placed(entry.turn)
        tokens = entry.turn.prompt_tokens
        self._seated[pe.group_id][turn_id] = None
        self.loads.give(self.groups[pe.group_id], turn_id, Unseen(pe.engine_id, tokens, 0, None, 0, None))
        self._reserve(entry, "prefill_tokens", pe.engine_id, tokens)
        self._join(self.decode_queue, entry)

    def choose_group(self, turn_id: TurnId, group_id: GroupId, note: DecisionNote) -> None:
        entry = self._entry(turn_id)
        self._leave(entry)
        entry.state = next_state(entry.state, Event.GROUP_CHOSEN)
        entry.de_group = group_id
        entry.note(note)
        self._join(self._group_queue(group_id), entry)

    def plan(
        self, turn_id: TurnId, de: Seat, side: ReadSide, *, assignment: int, notes: tuple[DecisionNote, ...]
    ) -> None:
        """The DE and the read side are known: everything the attempt needs is reserved at once."""
        entry = self._entry(turn_id)
        pe = entry.pe
        if pe is None:
            raise Broken(f"turn {turn_id} is planned without a PE", reason="LEDGER")
        self._leave(entry)
        entry.state = next_state(entry.state, Event.PLANNED)
        entry.de, entry.de_group, entry.read_side, entry.assignment = de, de.group_id, side, assignment
        for note in notes:
            entry.note(note)
        self.last_assignment = max(self.last_assignment, assignment)
        turn = entry.turn
        prompt, hits = turn.prompt_tokens, turn.hit_tokens
        self._reserve(entry, "decode_tokens", de.engine_id, prompt)
        self._reserve(entry, "hbm_tokens", de.engine_id, turn.total_tokens_max)
        pe_hits = de_hits = 0
        if hits and side is ReadSide.PE:
            self._reserve(entry, "read_tokens", pe.node_id, hits)
            self.counts.pe_side_reads += 1
            pe_hits = hits
        elif hits:
            self._reserve(entry, "read_tokens", de.node_id, hits)
            self.counts.de_side_reads += 1
            de_hits = hits
        pe_group, de_group = self.groups[pe.group_id], self.groups[de.group_id]
        entry.agent_epochs = {
            pe.group_id: pe_group.hello.agent_epoch,
            de.group_id: de_group.hello.agent_epoch,
        }
        self._seated[de.group_id][turn_id] = None
        self.loads.give(pe_group, turn_id, Unseen(pe.engine_id, prompt, 0, pe.node_id, pe_hits, assignment))
        self.loads.give(
            de_group, turn_id, Unseen(de.engine_id, prompt, turn.total_tokens_max, de.node_id, de_hits, assignment)
        )

    def progress(self, turn_id: TurnId, event: Event, *, read_done: bool = False, prefill_done: bool = False) -> None:
        """News of a running attempt. Where it stands within the attempt is not stored: a restart learns it anew."""
        entry = self._entry(turn_id)
        entry.state = next_state(entry.state, event)
        if read_done:
            self._release(entry, "read_tokens")
        if prefill_done and not entry.prefill_done:
            entry.prefill_done = True
            self._release(entry, "prefill_tokens")

    def give_back(self, turn_id: TurnId, note: DecisionNote) -> None:
        """The attempt is over without an end: everything released, back to the old place with attempt + 1."""
        entry = self._entry(turn_id)
        self._let_go(entry)
        entry.state = next_state(entry.state, Event.RETURNED)
        entry.note(note)
        entry.attempt += 1
        entry.pe = entry.de = entry.de_group = entry.read_side = None
        entry.assignment, entry.agent_epochs, entry.prefill_done, entry.told_again = 0, {}, False, False
        self.counts.attempts_returned += 1
        self._join(self.prefill_fifo, entry)

    def leave_group_queue(self, turn_id: TurnId, note: DecisionNote) -> None:
        """The DE group is gone: back to the global decode queue, the PE stays."""
        entry = self._entry(turn_id)
        self._leave(entry)
        entry.state = next_state(entry.state, Event.GROUP_LEFT)
        entry.de_group = None
        entry.note(note)
        self._join(self.decode_queue, entry)

    def end(self, turn_id: TurnId, event: Event, result: TurnResult, note: DecisionNote, *, now_s: float) -> None:
        """The one end of a turn: committed, failed or cancelled (law I3)."""
        entry = self._entry(turn_id)
        self._let_go(entry)
        entry.state = next_state(entry.state, event)
        entry.result, entry.ended_at_s = result, now_s
        entry.note(note)
        del self._open[turn_id]
        self._ended[turn_id] = None
        match event:
            case Event.COMMITTED:
                self.counts.committed += 1
            case Event.FAILED:
                self.counts.failed += 1
            case _:
                self.counts.cancelled += 1

    def drop(self, turn_id: TurnId) -> None:
        """Forget an ended turn whose time of retention is over."""
        entry = self.turns.pop(turn_id)
        del self._ended[turn_id]
        key = entry.turn.idempotency_key
        if self.idempotency.get(key) == turn_id:
            del self.idempotency[key]
        self._dropped[turn_id] = key

    # what the store does not know yet

    def unstored(self, turn_id: TurnId) -> ChangeSet:
        """What makes the store say of this turn what is said here; from then on that counts as stored."""
        entry = self.turns.get(turn_id)
        if entry is not None:
            line = self.line_of(entry)
            return unstored(entry, line.name if line is not None else None)
        key = self._dropped.pop(turn_id, None)
        if key is None:
            return ChangeSet()
        return ChangeSet((DropTurn(turn_id), DropIdempotency(key)) if key else (DropTurn(turn_id),))

    def unstored_contexts(self) -> ChangeSet:
        """The same for the context index."""
        return self.contexts.unstored()

    # rebuilding and checking

    @classmethod
    def rebuild(
        cls, stored: StoredCell, *, now_s: float, contexts_max: int = 1 << 20, order: Order = Order.FIFO
    ) -> "Ledger":
        """The ledger of a stored cell. Lines follow from the turns and are compared with the stored ones (law I5).

        raises  Broken if records or lines do not hold together
        """
        ledger = cls(contexts_max=contexts_max, order=order)
        ledger.contexts.restore(stored.contexts)
        ledger.idempotency = dict(stored.idempotency)
        missing = stored.turns.keys() - stored.prompts.keys()
        if missing:
            raise Broken(f"{len(missing)} turns have no prompt, {min(missing)} among them", reason="PROMPTS")
        entries = [TurnEntry.decode(record, stored.prompts[turn], now_s=now_s) for turn, record in stored.turns.items()]
        if ledger._fair is not None:
            unended = [entry for entry in entries if not entry.state.is_terminal]
            waiting = [entry.turn for entry in unended if entry.state is TurnState.PREFILL_FIFO]
            ledger._fair.restore([entry.turn for entry in unended], waiting)
        for entry in sorted(entries, key=lambda entry: entry.turn.arrival):
            if ledger._fair is None and entry.turn.tag:
                entry.promoted = True  # the order is by arrival again
            ledger._restore(entry)
        for key, amount in stored.records.items():
            ledger._restore_record(key, amount)
        for entry in ledger.open_turns():
            entry.prefill_done = entry.state.is_running and "prefill_tokens" not in entry.held
        for entry in ledger.turns.values():
            line = ledger.line_of(entry)
            count_as_stored(entry, line.name if line is not None else None)
        found = {name: tuple(turn for _, turn in line) for name, line in stored.lines.items() if line}
        wanted = {line.name: ledger.by_arrival(line) for line in ledger.lines() if len(line)}
        if found != wanted:
            raise Broken(f"stored lines {sorted(found)} differ from the turns' states", reason="LINES")
        return ledger

    def by_arrival(self, line: Line) -> tuple[TurnId, ...]:
        """As the store holds a line."""
        return tuple(sorted(line, key=lambda turn_id: self.turns[turn_id].turn.arrival))

    def lines(self) -> tuple[Line, ...]:
        return (self.prefill_fifo, self.decode_queue, *self.group_queues.values())

    def recount(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(resource, holder) -> (sum, seats), computed from the records alone: the oracle of the counters (law I2)."""
        counted: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for key, amount in self.records.items():
            resource, holder = _parts(key)
            total, seats = counted[resource, holder]
            counted[resource, holder] = (total + amount, seats + 1)
        return dict(counted)

    def counters(self) -> dict[tuple[str, str], tuple[int, int]]:
        """What the running counters say, in the form of `recount`."""
        sums, seats_of = self.loads.sums, self.loads.seats
        return {key: (sums[key], seats) for key, seats in seats_of.items() if seats or sums[key]}

    # helpers

    def pair_of(self, entry: TurnEntry) -> Pair:
        pe, de = entry.pe, entry.de
        if pe is None or de is None:
            raise Broken(f"turn {entry.turn.turn_id} has no pair", reason="LEDGER")
        return Pair(pe.engine_id, pe.node_id, pe.group_id, de.engine_id, de.node_id, de.group_id)

    def _entry(self, turn_id: TurnId) -> TurnEntry:
        entry = self.turns.get(turn_id)
        if entry is None:
            raise Broken(f"turn {turn_id} is unknown", reason="LEDGER")
        return entry

    def _group_queue(self, group_id: GroupId) -> Line:
        return self.group_queues.setdefault(group_id, Line(GROUP_QUEUE + group_id))

    def _join(self, line: Line, entry: TurnEntry) -> None:
        turn = entry.turn
        waiting = WaitingTurn(turn.turn_id, turn.arrival, turn.hit_tokens, turn.miss_tokens, turn.max_new_tokens)
        is_head = line.join(waiting, entry.line_key)
        self.waiting.join(turn)
        if line is self.prefill_fifo:
            if self._fair is not None:
                self._oldest.join(turn)
            if is_head:
                self.loads.fetches[Role.PREFILL].look_all()
        elif entry.state is TurnState.GROUP_QUEUE and entry.de_group is not None:
            self.loads.queued(entry.de_group)
            group = self.groups.get(entry.de_group)
            if is_head and group is not None:
                self.loads.fetches[Role.DECODE].look(group)

    def _leave(self, entry: TurnEntry) -> None:
        line = self.line_of(entry)
        if line is None:
            raise Broken(f"turn {entry.turn.turn_id} stands in no line", reason="LEDGER")
        line.leave(entry.line_key)
        self.waiting.leave(entry.turn)
        if line is self.prefill_fifo:
            self._oldest.leave(entry.turn)
        if entry.state is TurnState.GROUP_QUEUE and entry.de_group is not None:
            self.loads.queued(entry.de_group)
            group = self.groups.get(entry.de_group)
            if group is not None:
                self.loads.fetches[Role.DECODE].look(group)  # the next head may need less

    def _let_go(self, entry: TurnEntry) -> None:
        """Leave the line, close all records, forget unseen load."""
        if not entry.state.is_running:
            self._leave(entry)
        for resource in tuple(entry.held):
            self._release(entry, resource)
        for seat in (entry.pe, entry.de):
            if seat is not None:
                self._seated[seat.group_id].pop(entry.turn.turn_id, None)
                group = self.groups.get(seat.group_id)
                if group is not None:
                    self.loads.saw(group, entry.turn.turn_id)

    def _reserve(self, entry: TurnEntry, resource: str, holder: str, amount: int) -> None:
        key = f"{entry.turn.turn_id}:{entry.attempt}:{resource}:{holder}"
        if resource in entry.held:
            raise Broken(f"record {key} is open already", reason="LEDGER")
        entry.held[resource] = Held(key, holder, amount)
        self.records[key] = amount
        self.loads.add(resource, holder, amount)

    def _release(self, entry: TurnEntry, resource: str) -> None:
        """Close what an attempt holds of a resource; nothing if it is closed already."""
        held = entry.held.pop(resource, None)
        if held is not None:
            self.loads.remove(resource, held.holder, self.records.pop(held.key))

    def _restore_record(self, key: str, amount: int) -> None:
        """raises Broken for a record of a turn or an attempt that is not there"""
        turn_id, attempt, resource, holder = key.split(":", 3)
        entry = self.turns.get(TurnId(turn_id))
        if entry is None or entry.state.is_terminal or str(entry.attempt) != attempt or resource in entry.held:
            raise Broken(f"record {key} belongs to no attempt that is open", reason="RECORDS")
        entry.held[resource] = Held(key, holder, amount)
        self.records[key] = amount
        self.loads.add(resource, holder, amount)

    def _open_turn(self, turn: Turn) -> None:
        self._open[turn.turn_id] = None
        if turn.deadline_at_s is not None:
            heapq.heappush(self._deadlines, (turn.deadline_at_s, turn.turn_id))

    def _restore(self, entry: TurnEntry) -> None:
        turn = entry.turn
        self.turns[turn.turn_id] = entry
        self.last_arrival = max(self.last_arrival, turn.arrival)
        self.last_assignment = max(self.last_assignment, entry.assignment)
        self.counts.accepted += 1
        if entry.state.is_terminal:
            self._ended[turn.turn_id] = None
            self.counts.committed += entry.state is TurnState.COMMITTED
            self.counts.failed += entry.state is TurnState.FAILED
            self.counts.cancelled += entry.state is TurnState.CANCELLED
            return
        self._open_turn(turn)
        for seat in (entry.pe, entry.de):
            if seat is not None:
                self._seated[seat.group_id][turn.turn_id] = None
        if entry.state is TurnState.GROUP_QUEUE:
            self._group_queue(GroupId(str(entry.de_group)))
        line = self.line_of(entry)
        if line is not None:
            self._join(line, entry)


def _parts(key: str) -> tuple[str, str]:
    _, _, resource, holder = key.split(":", 3)
    return resource, holder
