"""The load generator's process: reads a Load as JSON on stdin, runs it, writes what it saw as JSON on stdout.

One loop over all sockets. Each pass sends the turns that are due, lets the leaders report, writes, and then takes what
has come; what comes in one pass is answered in one message per leader.
"""

import json
import random
import select
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import grpc
from benchmarks.control.clients import Clients, Times
from benchmarks.control.leaders import Fleet
from benchmarks.control.load import Load
from benchmarks.control.processes import cpu_s
from benchmarks.control.wire import Connection

from dualpath.v1 import admin_pb2, admin_pb2_grpc, agents_pb2

JOIN_S, PREPARE_S = 30.0, 60.0
PASS_MAX_S = 0.05
ERRORS_SHOWN = 5


@dataclass(slots=True)
class Cpu:
    """CPU seconds so far."""

    at_s: float
    scheduler_s: float
    redis_s: float
    generator_s: float


class Generator:
    """One run."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._clients = Clients(load)
        self._fleet = Fleet(load, time.monotonic, self._planned)
        self._chance = random.Random(load.seed)
        self._poll = select.epoll()
        self._by_fd: dict[int, Connection] = {}
        self._blocked: set[int] = set()
        for connection in [leader.connection for leader in self._fleet.leaders] + self._clients.connections:
            self._by_fd[connection.socket.fileno()] = connection
            self._poll.register(connection.socket.fileno(), select.EPOLLIN)
        self._next_due_s = float("inf")
        self._submits = False

    def run(self) -> dict[str, object]:
        load, clients = self._load, self._clients
        for leader in self._fleet.leaders:
            leader.say_hello()
        self._until(lambda: all(leader.welcomed for leader in self._fleet.leaders), JOIN_S, "groups joined")
        clients.prepare()
        self._until(lambda: clients.contexts_ready == load.contexts, PREPARE_S, "contexts were committed")
        self._submits = True
        self._next_due_s = time.monotonic()
        self._for(load.warm_up_s)
        began = self._cpu()
        self._for(load.seconds)
        ended = self._cpu()
        self._submits = False
        drain_until_s = time.monotonic() + load.drain_s
        while clients.under_way and time.monotonic() < drain_until_s and len(clients.errors) < clients.under_way:
            self._pass()
        self._for(2 * PASS_MAX_S)  # a second end or a second plan would come now
        return figures(load, clients, self._fleet, began, ended) | {"errors": self._errors()}

    # the loop

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline_s = time.monotonic() + seconds
        while not done():
            if self._clients.errors:
                raise RuntimeError(f"not all {what}: {self._clients.errors[:ERRORS_SHOWN]}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all {what} within {seconds:g} s")
            self._pass()

    def _for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._pass()

    def _pass(self) -> None:
        now_s = time.monotonic()
        if self._submits:
            self._submit(now_s)
        self._fleet.send_reports(now_s)
        for connection in self._by_fd.values():
            if connection.dirty or connection.wants_to_write:
                connection.flush()
                self._watch(connection)
        wait_s = min(self._next_due_s if self._submits else now_s + PASS_MAX_S, self._fleet.next_report_s) - now_s
        ready = self._poll.poll(max(0.0, min(wait_s, PASS_MAX_S)))
        self._clients.at(time.monotonic())
        for fd, mask in ready:
            if mask & ~select.EPOLLOUT:
                self._by_fd[fd].readable()

    def _watch(self, connection: Connection) -> None:
        """Ask to hear when a full socket takes bytes again."""
        fd = connection.socket.fileno()
        if connection.wants_to_write != (fd in self._blocked):
            self._blocked ^= {fd}
            self._poll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if connection.wants_to_write else 0))

    def _submit(self, now_s: float) -> None:
        if not self._load.rate:
            self._next_due_s = float("inf")
            more = self._load.outstanding - self._clients.under_way
            if more > 0:
                self._clients.submit([now_s] * more, now_s)
            return
        due = []
        while self._next_due_s <= now_s:
            due.append(self._next_due_s)
            self._next_due_s += self._chance.expovariate(self._load.rate)
        if due:
            self._clients.submit(due, now_s)

    def _planned(self, plan: agents_pb2.Plan) -> None:
        if plan.session_id.isdigit():
            self._clients.times.planned_at_s[int(plan.session_id)] = time.monotonic()

    def _cpu(self) -> Cpu:
        load = self._load
        return Cpu(time.monotonic(), cpu_s(load.scheduler_pid), cpu_s(load.redis_pid), time.process_time())

    # was every turn committed once?

    def _errors(self) -> list[str]:
        clients, seen = self._clients, self._fleet.seen
        errors = list(clients.errors)
        turns = len(clients.times.ends)
        everything = turns + self._load.contexts
        if (missing := clients.times.ends.count(0)) > 0:
            errors.append(f"{missing} of {turns} turns have not ended")
        if (more := sum(count > 1 for count in clients.times.ends)) > 0:
            errors.append(f"{more} turns ended more than once")
        for what, counter in (("PE plans", seen.pe_plans), ("DE plans", seen.de_plans), ("acks", seen.acks)):
            if len(counter) != everything or any(count != 1 for count in counter.values()):
                errors.append(
                    f"{what}: {counter.total()} for {len(counter)} turns, wanted one for each of {everything}"
                )
        errors += [f"{count} frames of kind {kind}" for kind, count in seen.others.items()]
        with grpc.insecure_channel(f"{self._load.host}:{self._load.port}") as channel:
            status = admin_pb2_grpc.AdminStub(channel).Status(admin_pb2.StatusRequest(), timeout=30)
        found = {
            "accepted": (status.accepted, everything),
            "committed": (status.committed, everything),
            "failed": (status.failed, 0),
            "cancelled": (status.cancelled, 0),
            "waiting": (status.waiting, 0),
            "running": (status.running, 0),
            "attempts returned": (status.attempts_returned, 0),
            "stale commits": (status.stale_commits, 0),
        }
        return errors + [
            f"the scheduler has {said} {name}, wanted {wanted}"
            for name, (said, wanted) in found.items()
            if said != wanted
        ]


def figures(load: Load, clients: Clients, fleet: Fleet, began: Cpu, ended: Cpu) -> dict[str, object]:
    """What the window between the two CPU readings shows."""
    times, span_s = clients.times, ended.at_s - began.at_s
    inside = [n for n, due_s in enumerate(times.due_at_s) if began.at_s <= due_s < ended.at_s]
    commits = sum(1 for at_s in times.ended_at_s if at_s is not None and began.at_s <= at_s < ended.at_s)
    per_turn = 1e6 / max(1, commits)
    found: dict[str, object] = {
        "turns": len(inside),
        "achieved": round(commits / span_s, 1),
        "scheduler_cpu_us_per_turn": round((ended.scheduler_s - began.scheduler_s) * per_turn, 1),
        "redis_cpu_us_per_turn": round((ended.redis_s - began.redis_s) * per_turn, 1),
        "generator_cpu_us_per_turn": round((ended.generator_s - began.generator_s) * per_turn, 1),
        "cores": round((ended.scheduler_s + ended.redis_s - began.scheduler_s - began.redis_s) / span_s, 3),
        "scheduler_cores": round((ended.scheduler_s - began.scheduler_s) / span_s, 3),
        "redis_cores": round((ended.redis_s - began.redis_s) / span_s, 3),
        "generator_cores": round((ended.generator_s - began.generator_s) / span_s, 3),
        "messages_up_per_turn": round(fleet.seen.messages_up / max(1, len(times.ends)), 2),
        "messages_down_per_turn": round(fleet.seen.messages_down / max(1, len(times.ends)), 2),
    }
    for name, spans_s in spans(times, inside).items():
        found[f"{name}_p50_ms"] = percentile_ms(spans_s, 0.50)
        found[f"{name}_p99_ms"] = percentile_ms(spans_s, 0.99)
    return found


def spans(times: Times, turns: list[int]) -> dict[str, list[float]]:
    """Seconds from one instant of a turn to another; turns that lack one are errors and counted there.

    assign  from the first event at the client to the plan at the DE's leader; 0 where the plan was there first
    """
    whole = [
        (times.due_at_s[n], times.sent_at_s[n], accepted, planned, ended)
        for n in turns
        if (accepted := times.accepted_at_s[n]) is not None
        and (planned := times.planned_at_s[n]) is not None
        and (ended := times.ended_at_s[n]) is not None
    ]
    return {
        "accept": [accepted - due for due, _, accepted, _, _ in whole],
        "assign": [max(0.0, planned - accepted) for _, _, accepted, planned, _ in whole],
        "plan": [planned - due for due, _, _, planned, _ in whole],
        "commit": [ended - planned for _, _, _, planned, ended in whole],
        "turn": [ended - due for due, _, _, _, ended in whole],
        "generator_lag": [sent - due for due, sent, _, _, _ in whole],
    }


def percentile_ms(values_s: list[float], share: float) -> float | None:
    if not values_s:
        return None
    ordered = sorted(values_s)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def main() -> None:
    load = Load(**json.load(sys.stdin))
    result = Generator(load).run()
    json.dump({"load": asdict(load)} | result, sys.stdout)


if __name__ == "__main__":
    main()
