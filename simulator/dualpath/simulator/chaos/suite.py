"""Many runs: one line per property, and the hunt for planted bugs. Seeds are shared out over processes."""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from dualpath.simulator.chaos.checker import LAWS, MEASURED, judge
from dualpath.simulator.chaos.mutants import MUTANTS, planted
from dualpath.simulator.chaos.world import TURNS, run_seed
from dualpath.simulator.runs.interrupt import at_safe_points
from dualpath.simulator.runs.pool import workers

CHUNK = 50  # seeds that a process runs before it reports
BREACHES_KEPT = 20  # of each property, with their seeds
MUTANT_RUNS = 400  # seeds in which a planted bug has to be noticed

Told = Callable[[int, int], None]  # runs ended, runs in all


@dataclass(slots=True)
class Row:
    """One property over many runs."""

    trials: int = 0  # runs in which it was looked at
    facts: int = 0  # comparisons
    failures: int = 0  # runs in which it did not hold
    worst: float = 0.0
    worst_seed: int | None = None
    breaches: list[tuple[int, str]] = field(default_factory=list)  # (seed, what was found), by seed

    def add(self, other: "Row") -> None:
        """Take another part's runs in; parts come in the order of their seeds."""
        if other.worst > self.worst:
            self.worst, self.worst_seed = other.worst, other.worst_seed
        self.trials += other.trials
        self.facts += other.facts
        self.failures += other.failures
        self.breaches = (self.breaches + other.breaches)[:BREACHES_KEPT]


@dataclass(slots=True)
class Tally:
    """What some runs have shown."""

    runs: int = 0
    turns: int = 0
    rows: dict[str, Row] = field(default_factory=lambda: {name: Row() for name in LAWS})
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        self.runs += other.runs
        self.turns += other.turns
        self.hits.update(other.hits)
        for name, row in self.rows.items():
            row.add(other.rows[name])

    @property
    def failures(self) -> int:
        return sum(row.failures for row in self.rows.values())

    def lines(self) -> list[dict[str, Any]]:
        """One value per property for machines; `seed` is that of the first failure, or of the worst value."""
        return [
            {
                "property": name,
                "laws": LAWS[name],
                "trials": row.trials,
                "facts": row.facts,
                "failures": row.failures,
                "worst": round(row.worst, 3) if name in MEASURED else None,
                "unit": "s" if name in MEASURED else None,
                "seed": row.breaches[0][0] if row.breaches else row.worst_seed,
                "found": row.breaches[0][1] if row.breaches else None,
            }
            for name, row in self.rows.items()
        ]


@dataclass(frozen=True, slots=True)
class Caught:
    """How a planted bug was noticed; no seed where it was not."""

    name: str
    runs: int
    seed: int | None = None
    broken: str = ""
    found: str = ""

    def line(self) -> dict[str, Any]:
        return {
            "mutant": self.name,
            "caught": self.seed is not None,
            "seed": self.seed,
            "property": self.broken or None,
            "laws": LAWS.get(self.broken),
            "runs": self.runs,
            "found": self.found or None,
            "about": MUTANTS[self.name].about,
        }


def run_suite(
    first: int, runs: int, *, jobs: int = 1, mutant: str = "", turns: int = TURNS, told: Told | None = None
) -> Tally:
    """Runs of the seeds from `first` on, judged. The answer depends on the seeds alone, not on `jobs`."""
    chunks = [(mutant, turns, at, min(CHUNK, first + runs - at)) for at in range(first, first + runs, CHUNK)]
    tally = Tally()
    for part in _mapped(tally_chunk, chunks, jobs):
        tally.add(part)
        if told is not None:
            told(tally.runs, runs)
    return tally


def hunt_all(names: Sequence[str], *, runs: int = MUTANT_RUNS, jobs: int = 1) -> Iterator[Caught]:
    """Each planted bug until it is noticed, or not within `runs` seeds."""
    yield from _mapped(hunt, [(name, runs) for name in names], jobs)


def hunt(asked: tuple[str, int]) -> Caught:
    """One planted bug: seeds from 0 on until something is broken."""
    name, runs = asked
    with quietly(), planted(name):
        for seed in range(runs):
            verdict = judge(run_seed(seed))
            if verdict.breaches:
                broken, found = verdict.breaches[0]
                return Caught(name, seed + 1, seed, broken, found)
    return Caught(name, runs)


def tally_chunk(chunk: tuple[str, int, int, int]) -> Tally:
    """(mutant or nothing, turns, first seed, how many)"""
    mutant, turns, first, count = chunk
    tally = Tally()
    with quietly(), planted(mutant):
        for seed in range(first, first + count):
            _take(tally, seed, turns)
    return tally


def _take(tally: Tally, seed: int, turns: int) -> None:
    run = run_seed(seed, turns)
    verdict = judge(run)
    tally.runs += 1
    tally.turns += len(run.stored)
    tally.hits.update({(fault.value, phase): count for (fault, phase), count in run.hits.items()})
    for name, facts in verdict.facts.items():
        row = tally.rows[name]
        row.trials += 1
        row.facts += facts
    for name, worst in verdict.worst.items():
        row = tally.rows[name]
        if worst > row.worst:
            row.worst, row.worst_seed = worst, seed
    found: dict[str, str] = {}
    for name, text in verdict.breaches:
        found.setdefault(name, text)
    for name, text in found.items():
        row = tally.rows[name]
        row.failures += 1
        row.breaches = [*row.breaches, (seed, text)][:BREACHES_KEPT]


@contextmanager
def quietly() -> Iterator[None]:
    """No log lines of the simulated schedulers; and cycles are collected between runs, which is a tenth faster."""
    before, collecting = structlog.get_config(), gc.isenabled()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.disable()
    try:
        yield
    finally:
        structlog.configure(**before)
        gc.collect()
        if collecting:
            gc.enable()


def _mapped(function: Callable[[Any], Any], asked: Sequence[Any], jobs: int) -> Iterator[Any]:
    """In order; in this process, or over several."""
    if jobs <= 1 or len(asked) <= 1:
        yield from map(function, asked)
        return
    with at_safe_points() as interrupt, workers(min(jobs, len(asked))) as pool:
        for result in pool.map(function, asked):
            interrupt.check()
            yield result
