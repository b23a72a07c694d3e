"""What happened in one run, as plain tuples in order: (second, event, ...). The checker reads nothing else of it."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from dualpath.simulator.chaos.weather import Fault


class Event(StrEnum):
    """What is written down, with the fields that follow the time and the event."""

    SUBMITTED = "submitted"  # key
    ACCEPTED = "accepted"  # key, turn id, arrival, epoch: the scheduler answers, after its write
    EPOCH = "epoch"  # epoch: a scheduler took over
    OPENED = "opened"  # epoch, whether what it read was damaged: it serves
    WRITTEN = "written"  # epoch, records opened and closed, turn ids first written, turn ids whose end was written
    ANSWER_LOST = "answer_lost"  # epoch: that write was taken, and its writer does not know
    REFUSED_STALE = "refused_stale"  # epoch: the store turned a deposed writer away
    PLAN_TOLD = "plan_told"  # group, turn id, attempt, arrival, epoch
    PLAN_TAKEN = "plan_taken"  # group, agent epoch, turn id, attempt: the leader works on it
    PLAN_LEFT = "plan_left"  # group, agent epoch, turn id, attempt: and does so no more
    COMMIT_SENT = "commit_sent"  # group, agent epoch, turn id, attempt, mark
    ACK_TOLD = "ack_told"  # group, turn id, attempt
    NEWS = "news"  # key, turn id, attempt, state, reason, mark: the client hears of an end
    CANCEL_TOLD = "cancel_told"  # key, state: the answer to a cancel
    LINK = "link"  # group, whether the leader can hear and be heard
    PLACED = "placed"  # line, ((arrival, turn id), ...) of all that waited in it, ((turn id, engine), ...) in order
    LEASE_ENDED = "lease_ended"  # group, epoch: that scheduler has not heard from it for too long
    LOOKED = "looked"  # number of facts compared
    BREACH = "breach"  # property, text: seen while the run went on
    FAULT = "fault"  # fault, phase: something went wrong on purpose
    THAWED = "thawed"  # a scheduler that stood still goes on
    HEALED = "healed"
    IDLE = "idle"  # nothing is open any more


Entry = tuple[Any, ...]  # (second, Event, fields)
Hit = Callable[[Fault, str], None]  # counts a fault with the phase it hit


class Stored(NamedTuple):
    """One turn as the store has it at the end."""

    turn_id: str
    key: str
    arrival: int
    state: str
    attempt: int
    reason: str
    mark: int  # first token of the result: which commit it came from; 0 for none
    message: str


@dataclass(slots=True)
class Promise:
    """What one client asked for."""

    key: str
    deadline_s: float
    poison: bool
    patient: bool  # its deadline is far beyond the end of all faults
    cancels: bool = False


@dataclass(slots=True)
class Run:
    """Everything the checker judges by."""

    seed: int
    calm: bool  # no faults, one turn at a time
    quiet: bool  # no frame is lost, late, doubled or overtaken
    attempts_max: int
    lease_s: float
    clock_rate: float  # seconds of the schedulers' clocks per second
    hbm_tokens: int  # of each decode engine
    entries: list[Entry] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    stored_records: dict[str, int] = field(default_factory=dict)
    hits: Counter[tuple[Fault, str]] = field(default_factory=Counter)  # (fault, phase) -> times
    ended_at_s: float = 0.0
    crash: str = ""  # what the service raised, or why the run could not go on

    def trace_hash(self) -> str:
        """The same for the same seed, in every process."""
        text = repr((self.entries, self.stored, self.stored_records, sorted(self.hits.items()), self.crash))
        return hashlib.sha256(text.encode()).hexdigest()
