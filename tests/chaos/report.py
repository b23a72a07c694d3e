"""What a suite found: one JSON line per property on stdout, everything for people on stderr."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SHOWN_MAX = 10  # failures of one property that are told in words


@dataclass(slots=True)
class Property:
    """One statement that must hold. `worst` is the value nearest to a bound, where there is one."""

    name: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    worst: float | None = None
    not_run: str = ""  # why; empty where it ran

    def trial(self, failure: str = "", *, value: float | None = None) -> None:
        """One trial; with a text it failed."""
        self.trials += 1
        if failure:
            self.failures.append(failure)
        if value is not None:
            self.worst = value if self.worst is None else max(self.worst, value)

    def bounded(self, value: float, bound: float, what: str) -> None:
        """One trial that fails where the value is above the bound."""
        self.trial(f"{what}: {value:.2f}, the bound is {bound:g}" if value > bound else "", value=value)

    def trials_of(self, count: int, failures: Iterable[str]) -> None:
        self.trials += count
        self.failures += failures

    def as_json(self, seed: int) -> dict[str, Any]:
        line: dict[str, Any] = {
            "property": self.name,
            "trials": self.trials,
            "failures": len(self.failures),
            "worst": None if self.worst is None else round(self.worst, 3),
            "seed": seed,
        }
        return line | {"not run": self.not_run} if self.not_run else line


@dataclass(slots=True)
class Report:
    """All properties of one run."""

    suite: str
    seed: int
    again: str  # the command that runs the same again
    properties: dict[str, Property] = field(default_factory=dict)

    def of(self, name: str) -> Property:
        return self.properties.setdefault(name, Property(name))

    def not_run(self, name: str, why: str) -> None:
        self.of(name).not_run = why

    @property
    def failures(self) -> int:
        return sum(len(found.failures) for found in self.properties.values())

    def say(self, text: str) -> None:
        """Progress, for people."""
        print(f"{self.suite} {text}", file=sys.stderr, flush=True)

    def finish(self) -> int:
        """Print everything; returns the exit status."""
        for found in self.properties.values():
            for text in found.failures[:SHOWN_MAX]:
                self.say(f"FAILURE {found.name}: {text}")
        for found in self.properties.values():
            print(json.dumps(found.as_json(self.seed)), flush=True)
        verdict = f"{self.failures} failures" if self.failures else "all held"
        self.say(f"{verdict}; again: {self.again}")
        return 1 if self.failures else 0
