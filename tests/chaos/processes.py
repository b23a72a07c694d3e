"""Real processes that are started, hurt and started again. Each ends with this one, even if this one is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

START_S = 60.0  # longest start of a process
STOP_S = 15.0  # what a process gets after SIGTERM
POLL_S = 0.02
LOG_LINES_SHOWN = 15
PYCACHE = Path(__file__).parents[2] / "build" / "pycache"

# Asks the kernel to kill the child with its parent, then becomes the real program; SIGKILL reaches a stopped one too.
_LAUNCH = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)


class Process:
    """One program with a name, a log and a number of starts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = folder / f"{name}.log"
        self.environment = dict(environment or {})
        self.starts = 0
        self.is_paused = False
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = _inherited() | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | self.environment
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.starts += 1
        self.is_paused = False

    async def ready(self, timeout_s: float = START_S) -> None:
        """raises TimeoutError or RuntimeError with the end of the log where it does not come to serve"""
        ends_at_s = time.monotonic() + timeout_s
        while not await asyncio.to_thread(self._ready):
            if not self.is_alive:
                raise RuntimeError(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > ends_at_s:
                raise TimeoutError(f"{self.name} was not ready after {timeout_s:g} s:\n{self.log_tail()}")
            await asyncio.sleep(POLL_S)

    async def serves(self) -> bool:
        return self.is_alive and await asyncio.to_thread(self._ready)

    def signal(self, number: int) -> None:
        if self.is_alive and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_paused = False

    def end(self) -> None:
        """Ask it to end: SIGTERM, to a paused one as well."""
        self.signal(signal.SIGTERM)
        self.go_on()

    async def gone(self, timeout_s: float = STOP_S) -> None:
        """Return when it is gone; after timeout_s it is killed."""
        ends_at_s = time.monotonic() + timeout_s
        while self.is_alive and time.monotonic() < ends_at_s:  # noqa: ASYNC110 (a process sets no event)
            await asyncio.sleep(POLL_S)
        self.kill()

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else ["(no log)"]
        return "\n".join(lines[-LOG_LINES_SHOWN:])


def _inherited() -> dict[str, str]:
    """Our environment, but compiled modules are kept: without that each start costs three seconds of CPU more."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"PYTHONPYCACHEPREFIX": str(PYCACHE)} | environment


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds of the machine, from /proc."""

    rss_bytes: int
    threads: int
    fds: int
    cpu_s: float


def usage(pid: int) -> Usage | None:
    """None where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        fds = len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in fields:  # a zombie
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return Usage(
        rss_bytes=int(fields["VmRSS"].split()[0]) * 1024,
        threads=int(fields["Threads"]),
        fds=fds,
        cpu_s=(int(stat[11]) + int(stat[12])) / ticks,
    )
