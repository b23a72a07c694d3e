"""How attempts and turns end: progress, commit, handback, cancel, deadline, lost engines. One door, `release`, gives
everything back, tells both sides, and is passed once per attempt.
"""

from dualpath.model.errors import Rejected
from dualpath.model.ids import BlockKey, GroupId, TurnId
from dualpath.model.turn import EndReason, TurnResult, TurnState
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.lifecycle.table import Event
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.messages import AttemptKey, SendCancel, SendCommitAck, SendStale

_EVENTS = {
    TurnState.READING: Event.READING,
    TurnState.PREFILLING: Event.PREFILLING,
    TurnState.DECODING: Event.DECODING,
}


class Settle:
    """Ends attempts and turns."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def progress(
        self, group_id: GroupId, key: AttemptKey, state: TurnState, *, read_done: bool, prefill_done: bool
    ) -> None:
        """News of a running attempt; stale news changes nothing."""
        entry = self._current(key)
        if entry is None or not entry.state.is_running or not _works_on(entry, group_id) or state not in _EVENTS:
            return
        core, before = self._core, entry.state
        core.ledger.progress(key.turn_id, _EVENTS[state], read_done=read_done, prefill_done=prefill_done)
        if entry.state is before:
            core.journal.append(key.turn_id)
        else:
            news = core.news(entry, first_token=entry.state is TurnState.DECODING)
            core.journal.append(key.turn_id, lambda: core.hub.publish(news))
        core.wake.set()

    def commit(self, group_id: GroupId, key: AttemptKey, result: TurnResult, new_keys: tuple[BlockKey, ...]) -> None:
        """The one accepted end (law I3), guarded by turn, attempt, group and epoch. Repeats are acknowledged again."""
        core = self._core
        entry = core.ledger.turns.get(key.turn_id)
        if entry is not None and entry.state is TurnState.COMMITTED and entry.attempt == key.attempt:
            core.journal.append(key.turn_id, lambda: core.tell(group_id, SendCommitAck(key)))  # it may be on its way
            return
        problem = self._commit_problem(entry, group_id, key)
        if entry is None or problem:
            core.ledger.counts.stale_commits += 1
            core.tell(group_id, SendStale(key, problem))
            return
        if result.end_reason is EndReason.CONTEXT_LOST:
            self._context_lost(entry, result)
        else:
            self._cancel_prefill(entry, group_id)
            block_tokens = core.ledger.groups[group_id].hello.block_tokens
            core.ledger.contexts.extend(entry.turn.hit_keys, new_keys, block_tokens)
            self._end(entry, Event.COMMITTED, result, result.end_reason)
        core.journal.append(key.turn_id, lambda: core.tell(group_id, SendCommitAck(key)))

    def handback(self, group_id: GroupId, key: AttemptKey, reason: str, message: str) -> None:
        """An agent gives an attempt up: another try, unless none can help or attempts_max are used up (A3)."""
        entry = self._current(key)
        if entry is None or not entry.state.is_running or not _works_on(entry, group_id):
            return
        if reason == "invalid":
            self.fail(entry, EndReason.INVALID, message)
        else:
            self.return_turn(entry, reason, message)

    def return_turn(self, entry: TurnEntry, reason: str, message: str = "") -> None:
        """The attempt is lost: back to its old place with attempt + 1, or FAILED(poison)."""
        core = self._core
        if entry.attempt >= core.bounds.attempts_max and entry.state.is_running:
            text = f"{entry.attempt} attempts were lost, the last one: {reason} {message}".strip()
            self.fail(entry, EndReason.POISON, text)
            return
        self._cancel_both(entry, reason)
        note = core.note(entry, "returned", "prefill_fifo", reason)
        core.ledger.give_back(entry.turn.turn_id, note)
        news = core.news(entry)
        core.journal.append(entry.turn.turn_id, lambda: core.hub.publish(news))
        core.wake.set()

    def cancel(self, turn_id: TurnId) -> TurnEntry:
        """Cancel a turn; one that has ended stays as it ended. Raises Rejected for an unknown turn."""
        entry = self._core.ledger.turns.get(turn_id)
        if entry is None:
            raise Rejected(f"turn {turn_id} is unknown here", field="turn_id", reason="UNKNOWN_TURN")
        if not entry.state.is_terminal:
            self._cancel_both(entry, "cancelled by the client")
            result = TurnResult((), EndReason.CANCELLED)
            self._end(entry, Event.CANCELLED, result, EndReason.CANCELLED)
        return entry

    def fail(self, entry: TurnEntry, reason: EndReason, message: str) -> None:
        self._cancel_both(entry, message)
        self._end(entry, Event.FAILED, TurnResult((), reason, message=message), reason)

    def expire(self) -> None:
        """End the turns whose deadline has come (law I7)."""
        for entry in self._core.ledger.past_deadline(self._core.now_s()):
            where = f"in state {entry.state}, attempt {entry.attempt}"
            self.fail(entry, EndReason.DEADLINE, f"deadline passed {where}")

    def sweep(self) -> None:
        """Deadlines, and ended turns whose retention is over."""
        core, now = self._core, self._core.now_s()
        self.expire()
        excess = core.ledger.ended_count - core.bounds.ended_turns_max
        for entry in core.ledger.ended_turns():
            if excess <= 0 and now - entry.ended_at_s < core.bounds.retention_s:
                break
            excess -= 1
            core.ledger.drop(entry.turn.turn_id)
            core.journal.append(entry.turn.turn_id)

    def _context_lost(self, entry: TurnEntry, result: TurnResult) -> None:
        """Storage has lost hit blocks: forget them, tell the client from where to submit again."""
        core = self._core
        block_tokens = max(1, entry.turn.hit_tokens // max(1, len(entry.turn.hit_keys)))
        lost = entry.turn.hit_keys[result.valid_context_tokens // block_tokens :]
        core.ledger.contexts.forget(lost)
        self._cancel_both(entry, "context lost")
        self._end(entry, Event.FAILED, result, EndReason.CONTEXT_LOST)

    def _end(
        self,
        entry: TurnEntry,
        event: Event,
        result: TurnResult,
        reason: EndReason,
    ) -> None:
        core = self._core
        note = core.note(entry, "ended", event, reason)
        core.ledger.end(entry.turn.turn_id, event, result, note, now_s=core.now_s())
        news = core.news(entry)
        core.journal.append(entry.turn.turn_id, lambda: core.hub.publish(news))
        core.wake.set()

    def _cancel_both(self, entry: TurnEntry, reason: str) -> None:
        """Tell both groups; an agent that has ended the attempt already does nothing."""
        if not entry.state.is_running:
            return
        key = Core.key(entry)
        for seat in (entry.pe, entry.de):
            if seat is not None:
                self._core.tell(seat.group_id, SendCancel(key, reason))

    def _cancel_prefill(self, entry: TurnEntry, group_id: GroupId) -> None:
        """A PE that got its plan again may be at it for nothing; one that is done does nothing."""
        if entry.told_again and entry.pe is not None and entry.pe.group_id != group_id:
            self._core.tell(entry.pe.group_id, SendCancel(Core.key(entry), "committed"))

    def _current(self, key: AttemptKey) -> TurnEntry | None:
        entry = self._core.ledger.turns.get(key.turn_id)
        return entry if entry is not None and entry.attempt == key.attempt else None

    def _commit_problem(self, entry: TurnEntry | None, group_id: GroupId, key: AttemptKey) -> str:
        if entry is None:
            return f"turn {key.turn_id} is unknown here"
        if entry.attempt != key.attempt or not entry.state.is_running:
            return f"attempt {key.attempt} is over: the turn is {entry.state}, attempt {entry.attempt}"
        if entry.de is None or entry.de.group_id != group_id:
            return f"the attempt belongs to another group than {group_id}"
        group = self._core.ledger.groups.get(group_id)
        if group is None or entry.agent_epochs.get(group_id) != group.hello.agent_epoch:
            return f"group {group_id} has started anew since this plan"
        return ""


def _works_on(entry: TurnEntry, group_id: GroupId) -> bool:
    return any(seat is not None and seat.group_id == group_id for seat in (entry.pe, entry.de))
