"""Judges one run by its history alone: what clients were told, what the store took, who worked on what, in what order.

Nothing of the ledger's own checks is used here. Each property of docs/reliability.md is a key of LAWS.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from dualpath.simulator.chaos.history import Entry, Event, Promise, Run, Stored
from dualpath.simulator.chaos.weather import Fault

LAWS = {
    "turns_are_kept": "I1 I5 R1",
    "turns_are_conserved": "I1",
    "answers_are_durable": "R1",
    "one_result": "I3 R2",
    "order_is_kept": "I4 R3",
    "ledger_adds_up": "I2 R4",
    "hbm_is_never_oversold": "I2 R5",
    "no_turn_is_orphaned": "I5",
    "every_turn_ends": "I7",
    "cancels_arrive": "R5",
    "deposed_is_powerless": "R2 R8",
    "damage_is_refused": "I6",
    "a_successor_comes": "R8",
    "silence_is_noticed": "R10",
    "turns_go_on_after_faults": "R8 R10 R16",
    "clocks_do_not_matter": "R15",
    "old_reports_change_nothing": "R16",
    "ties_are_spread": "I4",
    "no_broken_law": "I1-I5",
}
MEASURED = ("a_successor_comes", "silence_is_noticed", "turns_go_on_after_faults", "cancels_arrive")  # worst in s

END_AFTER_S = 10.0  # after its deadline a turn has ended (law I7)
GO_ON_S = 10.0  # from the end of all faults to the end of a turn that was under way
ALL = 1 << 30  # attempts of a turn
CANCEL_S = 0.05  # until a leader that can hear has let go
SUCCESSOR_S = 5.0  # from the end of a scheduler to the next one
SILENCE_S = 1.5  # beyond a lease, until a group that cannot be heard is given up: late frames, and the next sweep
RARE_S = 0.4  # that a rare way may add to it: a sweep left out, and a clock that is slow
GONE = (Fault.SCHEDULER_CRASH, Fault.SCHEDULER_FREEZE, Fault.CRASH_AFTER_WRITE)
EPSILON_S = 1e-6
REASONS = {
    "committed": ("length", "stop"),
    "cancelled": ("cancelled",),
    "failed": ("deadline", "poison", "invalid", "context_lost"),
}


@dataclass(slots=True)
class Verdict:
    """breaches  (property, what was found), in the order in which they were found
    facts     property -> how many things were compared
    worst     property -> the largest value measured"""

    seed: int
    breaches: list[tuple[str, str]] = field(default_factory=list)
    facts: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)

    def check(self, name: str, holds: bool, text: str) -> None:
        self.facts[name] += 1
        if not holds:
            self.breaches.append((name, text))

    def measure(self, name: str, value: float, limit: float, text: str) -> None:
        self.worst[name] = max(value, self.worst.get(name, 0.0))
        self.check(name, value <= limit + EPSILON_S, f"{text} after {value:.3f} s, wanted at most {limit:g} s")


def judge(run: Run) -> Verdict:
    """What does not hold in this run, and how much was looked at."""
    verdict = Verdict(run.seed)
    verdict.check("no_broken_law", not run.crash, run.crash)
    seen = _Reading(run, verdict)
    for entry in run.entries:
        seen.take(entry)
    seen.finish()
    if not run.crash:
        _judge_store(run, seen, verdict)
    return verdict


class _Reading:
    """One pass over the history. Law by law, what has to be remembered of it."""

    def __init__(self, run: Run, verdict: Verdict) -> None:
        self.run = run
        self.verdict = verdict
        self.submitted: dict[str, float] = {}
        self.accepted: dict[str, str] = {}  # key -> turn id
        self.told: dict[str, tuple[Any, ...]] = {}  # turn id -> (state, attempt, reason, mark)
        self.acked: dict[str, int] = {}
        self.cancel_told: dict[str, str] = {}  # key -> state
        self.marks: defaultdict[tuple[str, int], set[int]] = defaultdict(set)  # (turn id, attempt) -> marks committed
        self.arrivals: dict[str, int] = {}
        self.ended_at_s: dict[str, float] = {}  # key -> when its client heard
        self.healed_at_s = 0.0
        self._epoch = 0
        self._took_over_at_s = 0.0
        self._rare_at_s: list[float] = []
        self._up_since_s = 0.0  # the scheduler serves and has not stood still
        self._gone_at_s: float | None = None  # when the last scheduler crashed or froze
        self._unknown: Entry | None = None  # the write whose answer was lost: it comes once more, word for word
        self._last_written: Entry = ()
        self._records: dict[str, int] = {}
        self._stored: set[str] = set()
        self._ended: set[str] = set()
        self._linked_since: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}
        self._holders: dict[tuple[str, int, str, int], float] = {}  # (turn, attempt, group, agent epoch) -> since
        self._leaving: dict[tuple[str, int, str, int], float] = {}  # the same -> since when the attempt is over
        self._planned: defaultdict[str, set[int]] = defaultdict(set)  # turn id -> attempts that leaders were told of
        self._picks: Counter[str] = Counter()
        self._takers = {
            Event.SUBMITTED: self._submitted, Event.ACCEPTED: self._accepted, Event.EPOCH: self._took_over,
            Event.WRITTEN: self._written, Event.ANSWER_LOST: self._answer_lost, Event.PLAN_TOLD: self._plan_told,
            Event.PLAN_TAKEN: self._plan_taken, Event.PLAN_LEFT: self._plan_left, Event.COMMIT_SENT: self._commit_sent,
            Event.ACK_TOLD: self._ack_told, Event.NEWS: self._news, Event.CANCEL_TOLD: self._cancel_told,
            Event.LINK: self._link, Event.PLACED: self._placed, Event.LEASE_ENDED: self._lease_ended,
            Event.OPENED: self._opened,
            Event.THAWED: self._thawed,
            Event.FAULT: self._fault,
            Event.LOOKED: self._looked, Event.BREACH: self._breach, Event.HEALED: self._healed, Event.IDLE: self._idle,
        }  # fmt: skip

    def take(self, entry: Entry) -> None:
        taker: Any = self._takers.get(entry[1])
        if taker is not None:
            taker(entry[0], *entry[2:])

    # what clients hear

    def _submitted(self, at_s: float, key: str) -> None:
        self.submitted[key] = at_s

    def _accepted(self, at_s: float, key: str, turn_id: str, arrival: int, epoch: int) -> None:
        check = self.verdict.check
        known = self.accepted.setdefault(key, turn_id)
        check("turns_are_kept", known == turn_id, f"{key} was accepted as {known}, then as {turn_id}")
        same = self.arrivals.setdefault(turn_id, arrival)
        check("order_is_kept", same == arrival, f"{turn_id} had arrival number {same}, then {arrival}")
        check("answers_are_durable", turn_id in self._stored, f"{turn_id} was accepted before it was in the store")

    def _news(self, at_s: float, key: str, turn_id: str, attempt: int, state: str, reason: str, mark: int) -> None:
        check, now = self.verdict.check, (state, attempt, reason, mark)
        before = self.told.setdefault(turn_id, now)
        check("one_result", before == now, f"{turn_id} ended as {before}, then as {now}")
        check(
            "answers_are_durable", turn_id in self._ended, f"the end of {turn_id} was told before it was in the store"
        )
        self.ended_at_s.setdefault(key, at_s)
        promise = self.run.promises.get(key)
        if promise is not None:
            self._judge_end(at_s, promise, turn_id, state, reason)
        self._over(at_s, turn_id, attempt)

    def _judge_end(self, at_s: float, promise: Promise, turn_id: str, state: str, reason: str) -> None:
        check, key = self.verdict.check, promise.key
        fits = reason in REASONS.get(state, ())
        if reason == "deadline":
            fits = not promise.patient
            early_s = self.submitted.get(key, 0.0) + promise.deadline_s / self.run.clock_rate - at_s
            check("clocks_do_not_matter", early_s <= EPSILON_S, f"the deadline of {turn_id} came {early_s:.3f} s early")
        elif state == "cancelled":
            fits = fits and promise.cancels
        check("every_turn_ends", fits, f"{turn_id} of {promise} ended as {state}, {reason}")
        # a deadline counts anew when a scheduler takes over
        since_s = max(self.submitted.get(key, 0.0), self._took_over_at_s, self.healed_at_s)
        late_s = at_s - since_s - promise.deadline_s / self.run.clock_rate
        check("every_turn_ends", late_s <= END_AFTER_S, f"{turn_id} ended {late_s:.3f} s after its deadline")

    def _cancel_told(self, at_s: float, key: str, state: str) -> None:
        self.verdict.check("one_result", self.cancel_told.setdefault(key, state) == state, f"{key}: cancelled twice")
        turn_id = self.accepted.get(key)
        if turn_id is not None and state == "cancelled":
            durable = turn_id in self._ended
            self.verdict.check("answers_are_durable", durable, f"the cancel of {turn_id} was told before it was stored")
            self._over(at_s, turn_id, ALL)

    # what the store takes

    def _took_over(self, at_s: float, epoch: int) -> None:
        self.verdict.check("deposed_is_powerless", epoch > self._epoch, f"epoch {epoch} came after {self._epoch}")
        self._epoch, self._took_over_at_s = epoch, at_s
        self._unknown = None
        if self._gone_at_s is not None:
            took_s = at_s - self._gone_at_s
            self.verdict.measure("a_successor_comes", took_s, SUCCESSOR_S, f"epoch {epoch} came")
            self._gone_at_s = None

    def _opened(self, at_s: float, epoch: int, is_damaged: bool) -> None:
        self._up_since_s = at_s
        self.verdict.check("damage_is_refused", not is_damaged, f"epoch {epoch} serves what it read damaged")

    def _thawed(self, at_s: float) -> None:
        self._up_since_s = at_s
        self._gone_at_s = None

    def _fault(self, at_s: float, fault: Fault, phase: str) -> None:
        if fault in GONE:
            self._gone_at_s = at_s
        elif fault is Fault.RARE_WAY:
            self._rare_at_s.append(at_s)

    def _written(
        self,
        at_s: float,
        epoch: int,
        records: tuple[tuple[str, int], ...],
        first: tuple[str, ...],
        ended: tuple[str, ...],
    ) -> None:
        check, entry = self.verdict.check, (epoch, records, first, ended)
        check("deposed_is_powerless", epoch == self._epoch, f"epoch {epoch} wrote while {self._epoch} held the cell")
        if self._unknown is not None:
            same = self._unknown == entry
            check("answers_are_durable", same, f"{self._unknown} was not written again as it was, but as {entry}")
            self._unknown = None
            if same:
                self._last_written = entry
                return
        self._last_written = entry
        for turn_id in first:
            check("turns_are_kept", turn_id not in self._stored, f"{turn_id} was stored anew")
        for turn_id in ended:
            check("one_result", turn_id not in self._ended, f"{turn_id} was ended twice in the store")
        self._stored.update(first)
        self._ended.update(ended)
        for name, amount in records:
            self._record(name, amount)

    def _record(self, name: str, amount: int) -> None:
        """Opened once, closed once, and nothing open of a turn that has ended."""
        check, records = self.verdict.check, self._records
        if amount < 0:
            check("ledger_adds_up", records.pop(name, None) is not None, f"{name} was closed, and was not open")
            return
        check("ledger_adds_up", name not in records, f"{name} was opened twice")
        records[name] = amount
        resource, _, holder = name.split(":", 2)[2].partition(":")
        if resource == "hbm_tokens":
            promised = sum(held for other, held in records.items() if other.endswith(f":hbm_tokens:{holder}"))
            check("hbm_is_never_oversold", promised <= self.run.hbm_tokens, f"{holder}: {promised} tokens are promised")

    def _answer_lost(self, at_s: float, epoch: int) -> None:
        self._unknown = self._last_written

    def _idle(self, at_s: float) -> None:
        left = sorted(self._records)
        self.verdict.check("ledger_adds_up", not left, f"idle, and the store holds {left[:4]}")

    # what leaders do

    def _plan_told(self, at_s: float, group: str, turn_id: str, attempt: int, arrival: int, epoch: int) -> None:
        check = self.verdict.check
        check("answers_are_durable", turn_id in self._stored, f"{turn_id} was planned before it was in the store")
        planned = self._planned[turn_id]
        planned.add(attempt)
        check("turns_are_kept", len(planned) <= self.run.attempts_max, f"{turn_id} was planned for {sorted(planned)}")
        if epoch == self._epoch:
            self._over(at_s, turn_id, attempt - 1)

    def _plan_taken(self, at_s: float, group: str, agent_epoch: int, turn_id: str, attempt: int) -> None:
        self._holders[turn_id, attempt, group, agent_epoch] = at_s

    def _plan_left(self, at_s: float, group: str, agent_epoch: int, turn_id: str, attempt: int) -> None:
        holder = (turn_id, attempt, group, agent_epoch)
        self._holders.pop(holder, None)
        self._let_go(at_s, holder)

    def _over(self, at_s: float, turn_id: str, attempt: int) -> None:
        """Up to this attempt all are over: whoever can hear must let go soon."""
        if self.run.quiet:
            self.verdict.facts["cancels_arrive"] += 1
            for holder in self._holders:
                if holder[0] == turn_id and holder[1] <= attempt and holder[2] in self._linked_since:
                    self._leaving.setdefault(holder, at_s)

    def _let_go(self, at_s: float, holder: tuple[str, int, str, int]) -> None:
        since_s = self._leaving.pop(holder, None)
        if since_s is not None:
            turn_id, attempt, group, _ = holder
            self.verdict.measure("cancels_arrive", at_s - since_s, CANCEL_S, f"{group} let go of {turn_id}/{attempt}")

    def _commit_sent(self, at_s: float, group: str, agent_epoch: int, turn_id: str, attempt: int, mark: int) -> None:
        self.marks[turn_id, attempt].add(mark)

    def _ack_told(self, at_s: float, group: str, turn_id: str, attempt: int) -> None:
        check = self.verdict.check
        check("one_result", (turn_id, attempt) in self.marks, f"{turn_id}/{attempt} was acknowledged, nobody sent it")
        known = self.acked.setdefault(turn_id, attempt)
        check("one_result", known == attempt, f"{turn_id} was acknowledged for attempt {known}, then for {attempt}")
        check("answers_are_durable", turn_id in self._ended, f"{turn_id} was acknowledged before it was in the store")

    def _link(self, at_s: float, group: str, linked: bool) -> None:
        """A leader that cannot hear owes nothing: when it can again, its Hello settles what it holds."""
        if linked:
            self._linked_since[group] = at_s
            return
        self._linked_since.pop(group, None)
        self._silent_since[group] = at_s
        for holder in [holder for holder in self._leaving if holder[2] == group]:
            since_s = self._leaving.pop(holder)
            if at_s - since_s > CANCEL_S:
                self.verdict.check("cancels_arrive", False, f"{group} never let go of {holder[0]}/{holder[1]}")

    def _lease_ended(self, at_s: float, group: str, epoch: int) -> None:
        """With no frame lost or late, a group that could be heard all the time is never given up."""
        if epoch != self._epoch:
            return  # a deposed scheduler that does not know it yet
        linked_since_s = self._linked_since.get(group)
        if linked_since_s is None:
            since_s = max(self._silent_since.get(group, 0.0), self._up_since_s)
            delays = sum(rare_at_s >= since_s for rare_at_s in self._rare_at_s)
            silent_s = at_s - since_s - delays * RARE_S
            limit_s = self.run.lease_s / self.run.clock_rate + SILENCE_S
            self.verdict.measure("silence_is_noticed", silent_s, limit_s, f"{group} was given up")
        elif self.run.quiet:
            heard_s = at_s - linked_since_s
            text = f"{group} was given up, and could be heard for {heard_s:.3f} s"
            self.verdict.check("clocks_do_not_matter", heard_s <= self.run.lease_s, text)

    # the order, and what was seen on the way

    def _placed(
        self, at_s: float, line: str, waiting: tuple[tuple[int, str], ...], placed: tuple[tuple[str, str], ...]
    ) -> None:
        wanted = [turn_id for _, turn_id in waiting[: len(placed)]]
        found = [turn_id for turn_id, _ in placed]
        text = f"{line}: {found} were placed, the oldest of those that waited are {wanted}"
        self.verdict.check("order_is_kept", found == wanted, text)
        self._picks.update(engine for _, engine in placed)

    def _looked(self, at_s: float, facts: int) -> None:
        for name in ("turns_are_conserved", "ledger_adds_up", "hbm_is_never_oversold", "no_turn_is_orphaned"):
            self.verdict.facts[name] += facts
        self.verdict.facts["old_reports_change_nothing"] += facts

    def _breach(self, at_s: float, name: str, text: str) -> None:
        self.verdict.check(name, False, f"at {at_s:.3f} s: {text}")

    def _healed(self, at_s: float) -> None:
        self.healed_at_s = at_s

    def finish(self) -> None:
        """What only the end of the run shows."""
        run, verdict = self.run, self.verdict
        for key, at_s in self.submitted.items():
            ended_at_s = self.ended_at_s.get(key)
            verdict.check("every_turn_ends", ended_at_s is not None, f"{key} never heard of an end")
            promise = run.promises.get(key)
            if ended_at_s is not None and at_s <= self.healed_at_s and promise is not None and not run.calm:
                took_s = max(0.0, ended_at_s - self.healed_at_s)
                verdict.measure("turns_go_on_after_faults", took_s, GO_ON_S, f"{key} ended")
        for turn_id, attempt, group, _ in self._holders:
            verdict.check("cancels_arrive", False, f"{group} still holds {turn_id}/{attempt} at the end")
        if run.calm:
            self._judge_ties()

    def _judge_ties(self) -> None:
        """Turns that came one at a time met engines that were all alike: none takes more than twice its share."""
        for role in "pd":
            picks = [self._picks[f"{role}{group}-n{node}/g{node}"] for group in range(2) for node in range(2)]
            fair = sum(picks) / len(picks)
            if fair >= 2:
                fine = max(picks) <= 2 * fair and min(picks) >= fair / 2
                self.verdict.check("ties_are_spread", fine, f"engines of {role}0 and {role}1 got {picks} turns")


def _judge_store(run: Run, seen: _Reading, verdict: Verdict) -> None:
    """What the next scheduler would find: each accepted turn, with the one end that was told."""
    check = verdict.check
    check("ledger_adds_up", not run.stored_records, f"the store holds {sorted(run.stored_records)[:4]} at the end")
    for key, turn_id in seen.accepted.items():
        stored = run.stored.get(turn_id)
        check("turns_are_kept", stored is not None and stored.key == key, f"{turn_id} of {key} is not in the store")
    keys = Counter(stored.key for stored in run.stored.values())
    arrivals = Counter(stored.arrival for stored in run.stored.values())
    for stored in run.stored.values():
        check("turns_are_kept", keys[stored.key] == 1, f"{stored.key} names {keys[stored.key]} turns")
        check("order_is_kept", arrivals[stored.arrival] == 1, f"arrival number {stored.arrival} was given twice")
        _judge_stored(seen, stored, verdict)


def _judge_stored(seen: _Reading, stored: Stored, verdict: Verdict) -> None:
    check, turn_id = verdict.check, stored.turn_id
    now = (stored.state, stored.attempt, stored.reason, stored.mark)
    check("every_turn_ends", stored.state in REASONS and bool(stored.reason), f"{turn_id} is {now} in the store")
    told = seen.told.get(turn_id)
    check("one_result", told is None or told == now, f"{turn_id} was told as {told}, and is stored as {now}")
    if stored.state == "committed":
        sent = seen.marks.get((turn_id, stored.attempt), set())
        check("one_result", stored.mark in sent, f"{turn_id} holds {stored.mark}, its attempt committed {sorted(sent)}")
    acked = seen.acked.get(turn_id)
    if acked is not None:
        ended = stored.state == "committed" or stored.reason == "context_lost"
        check("one_result", ended and stored.attempt == acked, f"{turn_id}/{acked} was acknowledged, stored is {now}")
    state = seen.cancel_told.get(stored.key)
    if state is not None:
        check("one_result", state == stored.state, f"the cancel of {turn_id} was answered {state}, stored is {now}")
