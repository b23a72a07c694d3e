"""Keeps processes alive that others hurt: what is dead is started again at once, and every start is written down."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from .history import History
from .processes import Process

LOOK_S = 0.05
TAIL_CHARS = 600
SAID_WHY = "error: "  # how a process begins its last line that ends because it cannot start, such as without Redis
RESTART_GAP_S = 0.3  # between two starts of one process that keeps dying: a start costs a second of CPU


class Supervisor:
    """Use `watch` as a task."""

    def __init__(self, processes: Sequence[Process], history: History, *, may_end: str = "") -> None:
        """Deaths are told as crashes, but not where a process said why, or `may_end` is among its last words."""
        self._may_end = may_end
        self.processes = processes
        self.died: Counter[str] = Counter()  # deaths that nobody here caused
        self.crashes: list[str] = []  # those of them that are nobody's right
        self._history = history
        self._expected: set[str] = set()
        self._started_at_s: dict[str, float] = {}

    async def watch(self) -> None:
        while True:
            for process in self.processes:
                if not process.is_alive and process.name not in self._expected:
                    self.died[process.name] += 1
                    self._died(process)
                    await self._start(process)
            await asyncio.sleep(LOOK_S)

    def _died(self, process: Process) -> None:
        tail = process.log_tail()
        self._history.add("died", process=process.name, log=tail[-TAIL_CHARS:])
        said_why = tail.rpartition("\n")[2].startswith(SAID_WHY)
        if not said_why and not (self._may_end and self._may_end in tail):
            self.crashes.append(f"{process.name} died: ... {tail[-TAIL_CHARS:]}")

    async def kill(self, process: Process, *, down_s: float = 0.0) -> None:
        """kill -9, and start it again after down_s."""
        self._expected.add(process.name)
        self._history.add("kill", process=process.name)
        process.kill()
        await asyncio.sleep(down_s)
        await self._start(process)
        self._expected.discard(process.name)

    @asynccontextmanager
    async def left_alone(self, processes: Sequence[Process]) -> AsyncIterator[None]:
        """Within the block, somebody else starts and stops these."""
        names = {process.name for process in processes}
        self._expected |= names
        try:
            yield
        finally:
            self._expected -= names

    async def _start(self, process: Process) -> None:
        since_s = time.monotonic() - self._started_at_s.get(process.name, 0.0)
        await asyncio.sleep(max(0.0, RESTART_GAP_S - since_s))
        self._started_at_s[process.name] = time.monotonic()
        process.start()
        self._history.add("started", process=process.name, pid=process.pid, starts=process.starts)


def shuffled(kinds: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Each kind as often as the others, in a random order that repeats with the seed."""
    order: list[str] = []
    while len(order) < count:
        order += chance.sample(kinds, len(kinds))
    return order[:count]
