"""The scheduler process and its Redis: started, found, and their CPU time read from /proc."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

READY_S, STOP_S, POLL_S = 60.0, 20.0, 0.02
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
REDIS_NAMES = ("redis-server", "valkey-server")
CELL = "bench"


class Scheduler:
    """`dualpath scheduler` with its embedded Redis in `folder`, as anyone would start it."""

    def __init__(self, folder: Path, arguments: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.host, self.port, self.pid, self.redis_pid = "127.0.0.1", 0, 0, 0

    def __enter__(self) -> "Scheduler":
        self.folder.mkdir(parents=True, exist_ok=True)
        ready = self.folder / "ready.json"
        command = [sys.executable, "-m", "dualpath.scheduler", "--listen", f"{self.host}:0"]
        command += ["--cell", CELL, "--data", str(self.folder / "data"), "--ready-file", str(ready)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--log-level", "warning", *self._arguments], stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + READY_S
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._stop()
                raise RuntimeError(f"the scheduler did not start:\n{self.log_tail()}")
            time.sleep(POLL_S)
        self.port = int(json.loads(ready.read_text())["address"].rpartition(":")[2])
        self.pid = self._process.pid
        self.redis_pid = next((pid for pid in descendants(self.pid) if name_of(pid) in REDIS_NAMES), 0)
        if not self.redis_pid:
            self._stop()
            raise RuntimeError("the scheduler has no Redis of its own")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def log(self) -> Path:
        return self.folder / "scheduler.log"

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all its threads, and its children that have ended (Redis rewrites its AOF in one)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_S


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Every process below this one, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, look = [], [pid]
    while look:
        look = [child for parent in look for child in sorted(children.get(parent, ()))]
        found += look
    return found
