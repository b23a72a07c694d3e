"""Sessions against a machine: a session's next turn comes when its last one has ended and its tools have answered."""

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from dualpath.model.errors import Broken
from dualpath.model.layout import BLOCK_TOKENS
from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.turns import SimTurn
from dualpath.simulator.workload.sessions import Session

LOOK_EVERY = 5_000  # turns between two looks at progress and interrupts


class EndEarly(Exception):
    """Raised by a progress callback: the run ends here, and what was observed so far is its result."""


class Submits(Protocol):
    """A control plane as sessions see it."""

    def submit(self, turn: SimTurn) -> None: ...

    @property
    def waiting_turns(self) -> int: ...


Seen = Callable[[SimTurn], None]


class Driver:
    """Feeds sessions to a control plane and stops the timeline when all have ended.

    starts_s   when each session submits its first turn
    seen       hears of each turn's end, before the session goes on
    progress   called with (turns ended, sessions ended) now and then; may raise EndEarly
    """

    def __init__(
        self,
        machine: Machine,
        sessions: Sequence[Session],
        starts_s: Sequence[float],
        *,
        seen: Seen,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.machine = machine
        self.timeline = machine.timeline
        self.sessions = sessions
        self.starts_s = starts_s
        self.ended_turns = self.ended_sessions = 0
        self.control: Submits
        self._seen = seen
        self._progress = progress
        self._next_turn = array("l", bytes(8 * len(sessions)))
        self._context = array("l", bytes(8 * len(sessions)))
        self._arrivals = 0

    def start(self, control: Submits) -> None:
        """Arm every session's first turn."""
        self.control = control
        for number, start_s in enumerate(self.starts_s):
            self.timeline.at(start_s, self._submit, number)

    def committed(self, turn: SimTurn) -> None:
        """A turn has ended: its session goes on."""
        self.ended_turns += 1
        self._seen(turn)
        if self._progress is not None and self.ended_turns % LOOK_EVERY == 0:
            self._progress(self.ended_turns, self.ended_sessions)
        number = turn.session
        session = self.sessions[number]
        at = self._next_turn[number]
        if at == len(session.appends):
            self.ended_sessions += 1
            if self.ended_sessions == len(self.sessions):
                self.timeline.stop()
        elif session.pauses_s and session.pauses_s[at] > 0:
            self.timeline.at(self.timeline.now_s + session.pauses_s[at], self._submit, number)
        else:
            self._submit(number)

    def check_ended(self) -> None:
        """raises Broken(DEADLOCK) where sessions are open and nothing is left to happen"""
        if not self.timeline.is_stopped:
            raise Broken(
                f"deadlock at {self.timeline.now_s:.3f} s: nothing is left to happen; {self.state()}", reason="DEADLOCK"
            )

    def state(self) -> str:
        """What is open, for messages."""
        return (
            f"{len(self.sessions) - self.ended_sessions} of {len(self.sessions)} sessions are open, "
            f"{self._arrivals - self.ended_turns} turns of theirs, {self.control.waiting_turns} of them in a line"
        )

    def _submit(self, number: int) -> None:
        session = self.sessions[number]
        at = self._next_turn[number]
        self._next_turn[number] = at + 1
        context = self._context[number]
        if session.keeps and 0 <= session.keeps[at] < context:
            context = session.keeps[at]
        hit = context - context % BLOCK_TOKENS
        prompt = context + session.appends[at]
        gen = session.gens[at]
        self._context[number] = prompt + gen
        self._arrivals += 1
        self.control.submit(SimTurn(number, at, hit=hit, miss=prompt - hit, gen=gen, arrival=self._arrivals))
