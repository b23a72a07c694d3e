"""Sessions against a cluster: a session's next turn comes when its last one has ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.scheduler.policy.registry import Policy
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.simulator.control.direct import DirectControl
from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.machine.turns import SimTurn

BLOCK_TOKENS = 64


@dataclass(slots=True)
class SessionRun:
    appends: Sequence[int]
    gens: Sequence[int]
    start_at_s: float = 0.0
    next_turn: int = 0
    context: int = 0


class Driver:
    def __init__(self, machine: Machine, sessions: list[SessionRun], policy: Policy, limits: PolicyLimits) -> None:
        self.machine = machine
        self.timeline = machine.timeline
        self.sessions = sessions
        self.control = DirectControl(machine, policy, limits, committed=self._committed)
        self.number = 0
        self.done_sessions = 0
        self.records = []
        self.on_commit = None
        for i, s in enumerate(sessions):
            self.timeline.at(s.start_at_s, self._next, i)

    def _next(self, i: int) -> None:
        s = self.sessions[i]
        k = s.next_turn
        if k == len(s.appends):
            self.done_sessions += 1
            if self.done_sessions == len(self.sessions):
                self.timeline.stop()
            return
        s.next_turn = k + 1
        append, gen = s.appends[k], s.gens[k]
        hit = s.context - s.context % BLOCK_TOKENS
        prompt = s.context + append
        s.context = prompt + gen
        self.number += 1
        self.control.submit(SimTurn(i, k, hit=hit, miss=prompt - hit, gen=gen, arrival=self.number))

    def _committed(self, turn: SimTurn) -> None:
        if self.on_commit is not None:
            self.on_commit(turn, self.timeline.now_s)
        self._next(turn.session)

    def run(self, until=None) -> float:
        self.machine.start()
        if until is not None: self.timeline.at(until, lambda _: self.timeline.stop())
        self.timeline.run(self.control.pump)
        return self.timeline.now_s
