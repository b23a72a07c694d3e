"""Judges a history from the outside: what clients saw, what was done when, and what Redis holds at the end.

Shares no code with the scheduler's ledger. Instants are of the machine's one monotonic clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .history import Line
from .recount import Recount, StoredTurn
from .report import Property, Report

END_AFTER_DEADLINE_S = 10.0  # law I7
TAKEOVER_S, WRITE_GAP_S, ELSEWHERE_S = 5.0, 5.0, 5.0  # R8, R9, R10: with a lease of up to 3 s
LOSSY_S = 5.0  # Redis may lose what it took so long before
LOOK_S = 15.0  # so long after a fault its effects are looked for
STALL_VOIDS_S = 0.25  # a trial in which the machine stood still for so long says nothing about time
VOID_SHARE_MAX = 0.5  # more than that, and nothing was measured
FIFO = "prefill_fifo"
ENDED = {"committed", "failed", "cancelled"}
STARTED = {"planned", "reading", "prefilling", "decoding"}


@dataclass(slots=True)
class Seen:
    """One turn, as its client saw it."""

    key: str
    submitted_at_s: float = 0.0
    deadline_s: float = 0.0
    turn: str = ""
    first_heard_at_s: float | None = None
    result: Line | None = None
    events: list[Line] = field(default_factory=list)
    results: int = 0
    again: list[Line] = field(default_factory=list)
    refused: list[Line] = field(default_factory=list)


def turns_of(lines: Iterable[Line]) -> dict[str, Seen]:
    """By idempotency key."""
    turns: dict[str, Seen] = {}
    for line in lines:
        key = line.get("key")
        if key is None or line["what"] == "unread":
            continue
        seen = turns.setdefault(key, Seen(key))
        match line["what"]:
            case "submitted":
                seen.submitted_at_s, seen.deadline_s = line["at"], line["deadline_s"]
            case "event":
                seen.events.append(line)
                seen.turn = line["turn"]
                if seen.first_heard_at_s is None:
                    seen.first_heard_at_s = line["at"]
            case "result":
                seen.results += 1
                seen.result = line
            case "again":
                seen.again.append(line)
            case "refused":
                seen.refused.append(line)
    return turns


def judge(report: Report, lines: Sequence[Line], counted: Recount) -> None:
    """Everything that can be judged from a history and a recount."""
    turns = turns_of(lines)
    lossy_at_s = next((line["at"] for line in lines if line.get("lossy")), float("inf"))
    judge_answers(report, turns)
    judge_store(report, turns, counted, lossy_at_s=lossy_at_s)
    judge_order(report.of("R3_turns_leave_the_fifo_in_order"), turns, counted, before_s=lossy_at_s)
    judge_times(report, lines)


def judge_answers(report: Report, turns: dict[str, Seen]) -> None:
    """I3, I5, I6, I7 and R15 as clients see them."""
    answered = report.of("R1_every_accepted_turn_is_answered")
    once = report.of("R2_one_result_per_turn")
    right = report.of("R6_answers_are_right")
    ending = report.of("I7_turns_end_by_deadline_and_10_s")
    early = report.of("R15_no_deadline_comes_early")
    for seen in turns.values():
        if not seen.refused:
            answered.trial("" if seen.result else f"turn {seen.key} has no answer")
        if seen.result is None:
            continue
        answers = max(seen.results, seen.result["answers"])
        other = [line for line in seen.again if line["digest"] != seen.result["digest"]]
        text = f"turn {seen.key} had {answers} answers" if answers != 1 else ""
        once.trial(text or (f"turn {seen.key} asked again had another answer" if other else ""), value=answers)
        right.trial("" if seen.result["right"] else f"turn {seen.key} has wrong tokens")
        if seen.deadline_s:
            late_s = seen.result["at"] - seen.submitted_at_s - seen.deadline_s
            ending.bounded(late_s, END_AFTER_DEADLINE_S, f"turn {seen.key} ended after its deadline by seconds")
        if seen.result["end"] == "deadline":
            left_s = seen.submitted_at_s + seen.deadline_s - seen.result["at"] if seen.deadline_s else float("inf")
            early.trial(f"turn {seen.key} ended {left_s:.2f} s before its deadline" if left_s > 0 else "")


def judge_store(report: Report, turns: dict[str, Seen], counted: Recount, *, lossy_at_s: float) -> None:
    """I1, I2 and I5 from the keys in Redis: it tells of the same turns, ended in the same way, and holds nothing."""
    agree = report.of("I1_recount_equals_what_clients_saw")
    for seen in turns.values():
        stored, result = counted.turns.get(seen.key), seen.result
        if result is None or (result["at"] > lossy_at_s - LOSSY_S and _was_lost(stored, result)):
            continue
        agree.trial(_difference(seen, stored))
    orphans = [turn for turn in counted.turns.values() if turn.state not in ENDED]
    no_orphan = report.of("I5_no_unfinished_turn_is_left")
    no_orphan.trials_of(
        len(counted.turns), [f"turn {t.key} is {t.state}, attempt {t.attempt}, for ever" for t in orphans]
    )
    ledger = report.of("I2_nothing_is_reserved_at_the_end")
    ledger.trial(f"Redis holds {counted.records} ledger records of an idle cell" if counted.records else "")
    ledger.trial(f"Redis holds {counted.waiting} places in lines of an idle cell" if counted.waiting else "")
    report.of("I1_what_is_stored_holds_together").trials_of(len(counted.turns), counted.problems)


def _was_lost(stored: StoredTurn | None, result: Line) -> bool:
    """Redis itself lost the end of the turn, or all of it."""
    return stored is None or stored.digest != result["digest"]


def _difference(seen: Seen, stored: StoredTurn | None) -> str:
    assert seen.result is not None
    if stored is None:
        return f"turn {seen.key} was answered and is not in Redis"
    if stored.digest != seen.result["digest"]:
        return f"turn {seen.key} was answered {seen.result['end']}, Redis has {stored.end} ({stored.state})"
    return ""


def judge_order(order: Property, turns: dict[str, Seen], counted: Recount, *, before_s: float) -> None:
    """I4: of two turns, the earlier arrival gets its first PE first.

    A lower bound of one's instant is compared with an upper bound of the other's, so what is found is certain: a turn
    is placed no sooner than its submission plus the time that its record names, and no later than a client hears of it.
    """
    placed: list[tuple[int, float, float, str]] = []  # arrival, not before, not after, key
    for seen in turns.values():
        stored = counted.turns.get(seen.key)
        first = next((line for line in seen.events if line["state"] in STARTED or line["attempt"] > 1), None)
        if stored is None or first is None or first["attempt"] != 1:
            continue
        if seen.result is None or seen.result["at"] > before_s:  # forgotten by Redis, it would have come in anew
            continue
        after_s = next((s for attempt, s, step, _ in stored.decisions if attempt == 1 and step == "prefill"), None)
        if after_s is not None:
            placed.append((stored.arrival, seen.submitted_at_s + after_s, first["at"], seen.key))
    placed.sort(reverse=True)
    soonest, whose = float("inf"), ""  # of all later arrivals
    for _, not_before_s, not_after_s, key in placed:
        overtaken_s = not_before_s - soonest
        text = f"turn {key} was overtaken by {whose}, {overtaken_s:.3f} s before it" if overtaken_s > 0 else ""
        order.trial(text)
        if not_after_s < soonest:
            soonest, whose = not_after_s, key


# times


def judge_times(report: Report, lines: Sequence[Line]) -> None:
    """R8, R9 and R10: how long each fault was felt."""
    takeover = report.of("R8_new_leader_assigns_in_5_s")
    gap = report.of("R9_writes_go_on_in_5_s")
    elsewhere = report.of("R10_turns_of_a_lost_agent_go_elsewhere_in_5_s")
    void: defaultdict[str, int] = defaultdict(int)
    for at, line in enumerate(lines):
        if line["what"] != "fault":
            continue
        after = _window(lines, at)
        if any(other["what"] == "stall" and other["s"] > STALL_VOIDS_S for other in after):
            void[line["kind"]] += 1
            continue
        match line["kind"]:
            case "leader":
                _judge_takeover(takeover, line, after)
            case "redis":
                gap.bounded(_longest_gap_s(line, after), WRITE_GAP_S, f"silence after {line['victim']} at {line['at']}")
            case "agent":
                _judge_elsewhere(elsewhere, line, lines[:at], after)
    for kind, found in (("leader", takeover), ("redis", gap), ("agent", elsewhere)):
        if void[kind] > VOID_SHARE_MAX * (void[kind] + found.trials):
            found.not_run = f"{void[kind]} trials are void: the machine stood still for {STALL_VOIDS_S} s and more"
            found.failures.clear()


def _window(lines: Sequence[Line], at: int) -> list[Line]:
    """From a fault to the next one, and not longer than LOOK_S."""
    began_s, found = lines[at]["at"], []
    for line in lines[at + 1 :]:
        if line["what"] == "fault" or line["at"] > began_s + LOOK_S:
            break
        found.append(line)
    return found


def _judge_takeover(takeover: Property, fault: Line, after: Sequence[Line]) -> None:
    """Where nobody took over, the leader was back in time: then nothing is measured."""
    led_at_s = next((x["at"] for x in after if x["what"] == "leads" and x["epoch"] > fault["epoch"]), None)
    if led_at_s is None:
        return
    news = (x["at"] for x in after if x["what"] == "event" and x["at"] > led_at_s and x["state"] in STARTED)
    first_s = next(news, None)
    if first_s is None:  # a new leader, and then nothing until the next fault
        takeover.trial(f"no new assignment after {fault['victim']} was lost at {fault['at']}")
    else:
        takeover.bounded(first_s - fault["at"], TAKEOVER_S, f"after {fault['victim']} was lost at {fault['at']}")


def _longest_gap_s(fault: Line, after: Sequence[Line]) -> float:
    """Between two things that clients hear: each is said after a write."""
    heard = [fault["at"], *(line["at"] for line in after if line["what"] in ("event", "result"))]
    return max((later - sooner for sooner, later in pairwise(heard)), default=LOOK_S)


def _judge_elsewhere(elsewhere: Property, fault: Line, before: Sequence[Line], after: Sequence[Line]) -> None:
    """Each turn that ran on the lost node starts again, ends, or is heard of from there: a node may come back."""
    running: dict[str, Line] = {}
    for line in before[-2000:]:
        if line["what"] == "event":
            running[line["key"]] = line
        elif line["what"] == "result":
            running.pop(line["key"], None)
    mine = {
        key: line for key, line in running.items() if line["state"] in STARTED and fault["victim"] in _nodes_of(line)
    }
    for key in mine:
        news = (x["at"] for x in after if x.get("key") == key and x["what"] in ("event", "result"))
        first_s = next(news, None)
        text = f"turn {key} on {fault['victim']}, lost at {fault['at']}"
        if first_s is None:
            heard_s = after[-1]["at"] - fault["at"] if after else 0.0
            if heard_s > ELSEWHERE_S:  # else the next fault came before the bound
                elsewhere.trial(f"{text}: nothing heard in the {heard_s:.1f} s after")
        else:
            elsewhere.bounded(first_s - fault["at"], ELSEWHERE_S, text)


def _nodes_of(event: Line) -> tuple[Any, Any]:
    """Engines are named node/g0."""
    return event["pe"].partition("/")[0], event["de"].partition("/")[0]
