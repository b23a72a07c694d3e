"""Child processes with an owner: started, watched, started again a bounded number of times, and all gone at the end."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualpath.model.errors import Broken, Refused

READY_S = 60.0  # longest start of a child
POLL_S = 0.05
RESTARTS_MAX = 5  # restarts of one child within RESTART_WINDOW_S
RESTART_WINDOW_S = 60.0
STOP_S = 15.0  # time a child gets after SIGTERM
LOG_TAIL_LINES = 15

# Ask the kernel to end the child with its parent, even if the parent is killed, then become the real program.
_LAUNCH = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None,use_errno=True).prctl(1,signal.SIGTERM);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`module` is run as `python -m module arguments`; it writes `ready_file` once it serves."""

    name: str
    module: str
    arguments: tuple[str, ...]
    ready_file: Path
    log: Path


class Child:
    """One process and its restarts."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._starts_at_s: list[float] = []
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process in a session of its own: Ctrl-C reaches the supervisor alone, which stops its children."""
        self.spec.ready_file.unlink(missing_ok=True)
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self.spec.module, *self.spec.arguments]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self.spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._starts_at_s.append(time.monotonic())

    async def ready(self) -> dict[str, object]:
        """What the child wrote when it began to serve; raises Broken with the end of its log if it does not."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.spec.ready_file.exists():
                body: dict[str, object] = json.loads(self.spec.ready_file.read_text())
                return body
            if not self.is_alive:
                raise Broken(f"{self.spec.name} ended while starting:\n{self.log_tail()}", reason="CHILD")
            await asyncio.sleep(POLL_S)
        raise Broken(f"{self.spec.name} was not ready after {READY_S:g} s:\n{self.log_tail()}", reason="CHILD")

    def restart(self) -> None:
        """Start again after a death; raises Broken after RESTARTS_MAX deaths within RESTART_WINDOW_S."""
        recent = [at for at in self._starts_at_s if time.monotonic() - at < RESTART_WINDOW_S]
        if len(recent) > RESTARTS_MAX:
            raise Broken(f"{self.spec.name} died {len(recent)} times:\n{self.log_tail()}", reason="CHILD")
        self.restarts += 1
        self.start()

    def signal(self, number: int) -> None:
        if self.is_alive and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_S; returns when the process is gone."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while self.is_alive and time.monotonic() < deadline:  # noqa: ASYNC110 (Popen has no event)
            await asyncio.sleep(POLL_S)
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def log_tail(self) -> str:
        try:
            lines = self.spec.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-LOG_TAIL_LINES:])


class Supervisor:
    """Keeps children running. The first child is stopped last: it is what the others depend on."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.children = [Child(spec) for spec in specs]
        self._stopping = False

    async def start(self) -> list[dict[str, object]]:
        """Start the first child, then all others at once; on failure nothing is left running."""
        try:
            self.children[0].start()
            bodies = [await self.children[0].ready()]
            for child in self.children[1:]:
                child.start()
            bodies += await asyncio.gather(*(child.ready() for child in self.children[1:]))
        except BaseException:
            await self.stop()
            raise
        return bodies

    async def watch(self) -> None:
        """Restart what dies, until cancelled; raises Broken if something keeps dying."""
        while not self._stopping:
            for child in self.children:
                if not child.is_alive:
                    print(f"{child.spec.name} died, starting it again (log: {child.spec.log})", file=sys.stderr)
                    child.restart()
            await asyncio.sleep(4 * POLL_S)

    async def stop(self) -> None:
        self._stopping = True  # what dies from now on stays dead
        await asyncio.gather(*(child.stop() for child in self.children[1:]))
        if self.children:
            await self.children[0].stop()


def free_or_refuse(path: Path, pid_file_name: str = "up.pid") -> Path:
    """Claim a data folder for this process; raises Refused while another living one holds it."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / pid_file_name
    if file.exists():
        with contextlib.suppress(ValueError, ProcessLookupError):
            pid = int(file.read_text())
            os.kill(pid, 0)
            if pid != os.getpid():
                message = f"{path} is in use by process {pid}; give another data folder or stop that one"
                raise Refused(message, retry_after_s=1.0, reason="DATA_DIR_IN_USE")
    file.write_text(str(os.getpid()))
    return file
