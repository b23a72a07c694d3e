"""What was seen, as JSON lines: one file per witness, instants on the machine's monotonic clock.

    {"at": 12.345, "who": "client-3", "what": "submitted", "key": "...", ...}

A line is handed to the kernel before the witness goes on, so a witness that is killed leaves what it saw.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

Line = Mapping[str, Any]


class History:
    """One witness. Without a path it only counts."""

    def __init__(self, path: Path | None, who: str) -> None:
        self.who = who
        self.counts: Counter[str] = Counter()
        self._file: int | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, what: str, **fields: object) -> None:
        self.counts[what] += 1
        if self._file is not None:
            line = {"at": round(time.monotonic(), 6), "who": self.who, "what": what, **fields}
            os.write(self._file, orjson.dumps(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(paths: Iterable[Path]) -> list[Line]:
    """All lines in the order of their instants; a last line cut short by a kill is left out."""
    lines: list[dict[str, Any]] = []
    for path in sorted(paths):
        for raw in path.read_bytes().split(b"\n"):
            try:
                lines.append(orjson.loads(raw))
            except orjson.JSONDecodeError:
                continue
    return sorted(lines, key=lambda line: float(line["at"]))
