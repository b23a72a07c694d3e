"""Samples of what processes and Redis hold over time, and the trend in them."""

import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import redis.asyncio as redis

from .idle import Stored, stored
from .processes import Usage, usage
from .stack import CELL, Stack

HTTP_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `usages` is by process name, with the pid it had then."""

    at_s: float  # since the first sample's clock began
    usages: dict[str, tuple[int, Usage]]
    stored: Stored
    series: int  # lines of the scheduler's metrics

    def as_json(self) -> dict[str, object]:
        usages = {name: {"pid": pid, **asdict(found)} for name, (pid, found) in self.usages.items()}
        return {"at_s": round(self.at_s, 1), "usages": usages, "stored": asdict(self.stored), "series": self.series}


@dataclass(slots=True)
class Sampler:
    """Looks at a stack and at this process, which runs the load."""

    stack: Stack
    client: "redis.Redis"
    began_at_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    async def take(self) -> Sample:
        pids = {name: process.pid for name, process in self.stack.by_name.items()} | {"load": os.getpid()}
        usages = {name: (pid, found) for name, pid in pids.items() if pid and (found := usage(pid))}
        sample = Sample(
            at_s=time.monotonic() - self.began_at_s,
            usages=usages,
            stored=await stored(self.client, CELL),
            series=_series(self.stack.http),
        )
        self.samples.append(sample)
        return sample


def _series(http: str) -> int:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=HTTP_S) as reply:
        lines = reply.read().decode().splitlines()
    return sum(bool(line) and not line.startswith("#") for line in lines)


@dataclass(frozen=True, slots=True)
class Trend:
    """RSS of one life of a process, between two instants."""

    pid: int
    minutes: float
    first_mib: float
    last_mib: float
    max_mib: float
    mib_per_min: float


def trend(samples: Sequence[Sample], name: str, *, since_s: float, until_s: float) -> Trend | None:
    """Of the longest life that `name` had in that time; None where it has fewer than three samples."""
    lives: dict[int, list[tuple[float, float]]] = {}
    for sample in samples:
        if since_s <= sample.at_s <= until_s and name in sample.usages:
            pid, found = sample.usages[name]
            lives.setdefault(pid, []).append((sample.at_s / 60, found.rss_bytes / MIB))
    pid, points = max(lives.items(), key=lambda life: len(life[1]), default=(0, []))
    if len(points) < 3:
        return None
    sizes = [size for _, size in points]
    span = points[-1][0] - points[0][0]
    first, last, largest = (round(size, 2) for size in (sizes[0], sizes[-1], max(sizes)))
    return Trend(pid, round(span, 1), first, last, largest, round(slope(points), 4))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares: rise of y per x."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
