"""Frames between the scheduler and everybody else: on their way for a moment, in order, unless a fault hits them."""

import random
from collections.abc import Callable
from typing import Any

from dualpath.simulator.chaos.history import Hit
from dualpath.simulator.chaos.weather import Fault
from dualpath.simulator.machine.timeline import Timeline

LATE_MAX_S = 0.4
OVERTAKEN_MAX_S = 0.05
BREAK_MAX_S = 0.5  # until both ends notice that a frame was lost


class Way:
    """One direction of one stream."""

    __slots__ = ("broken", "cut", "last_at_s")

    def __init__(self, broken: Callable[[], None]) -> None:
        self.last_at_s = 0.0
        self.cut = False  # a partition: what is sent is lost
        self.broken = broken  # a frame was lost, the stream breaks soon


class Network:
    """Carries frames; `frame_p` is the chance of each fault, until `heal`."""

    def __init__(self, timeline: Timeline, chance: random.Random, frame_p: float, hit: Hit) -> None:
        self._timeline = timeline
        self._chance = chance
        self._frame_p = frame_p
        self._faults_p = 4 * frame_p
        self._hit = hit

    def heal(self) -> None:
        self._faults_p = 0.0

    def carry(self, way: Way, phase: str, deliver: Callable[[Any], None], frame: Any) -> None:
        """Bring a frame over, or not; `phase` names its kind in the count of what was hit."""
        timeline, chance = self._timeline, self._chance.random()
        at_s = timeline.now_s + 0.0005 + 0.001 * ((chance * 4096) % 1.0)
        if way.cut:
            return
        if chance < self._faults_p:
            at_s = self._hurt(way, phase, deliver, frame, at_s, int(chance / self._frame_p))
            if at_s < 0:
                return
        elif at_s < way.last_at_s:
            at_s = way.last_at_s
        way.last_at_s = at_s
        timeline.at(at_s, deliver, frame)

    def _hurt(self, way: Way, phase: str, deliver: Callable[[Any], None], frame: Any, at_s: float, fault: int) -> float:
        """When the frame arrives in line, -1 if it does not."""
        timeline, uniform = self._timeline, self._chance.uniform
        match fault:
            case 0:
                self._hit(Fault.FRAME_LOST, phase)
                timeline.at(timeline.now_s + uniform(0.0, BREAK_MAX_S), lambda _: way.broken())
                return -1.0
            case 1:
                self._hit(Fault.FRAME_TWICE, phase)
                timeline.at(at_s + uniform(0.0, LATE_MAX_S), deliver, frame)
                return max(at_s, way.last_at_s)
            case 2:
                self._hit(Fault.FRAME_LATE, phase)
                return max(at_s, way.last_at_s) + uniform(0.0, LATE_MAX_S)
            case _:
                self._hit(Fault.FRAME_OVERTAKEN, phase)
                timeline.at(at_s + uniform(0.0, OVERTAKEN_MAX_S), deliver, frame)
                return -1.0
