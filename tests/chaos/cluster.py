"""What chaos is done to: three Redises under three Sentinels, two schedulers, six agents, each on a host of its own.

Without network namespaces all stand on loopback. One agent and a part of the clients reach the schedulers through
proxies of this process.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import redis.asyncio as redis

from dualpath.scheduler.stores.embedded import find_server

from .network import HERE, Network
from .processes import Process
from .proxy import Proxy
from .stack import HOST, Shape, agent_process, answers, free_port, redis_process, scheduler_process, start_all, stop_all

SERVICE = "cell"
REDISES, SENTINELS, SCHEDULERS = 3, 3, 2
QUORUM = 2
DOWN_AFTER_MS = 1000
PROXIED = "p2"  # the agent behind proxies
SKEWED = {"s1": "+1h", "p1": "-1h", "d1": "+1h"}  # wall clocks, where libfaketime is there
FAKETIME = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu" / "faketime" / "libfaketime.so.1"
SKEWED_PATH = Path(__file__).with_name("skewed")
PRIMARY_S = 30.0  # longest wait for a primary with its replicas


class Cluster:
    """Use as `async with Cluster(...)`. `processes` is everything by name."""

    def __init__(self, folder: Path, shape: Shape, network: Network | None, *, disk: Path) -> None:
        self.folder = folder
        self.shape = replace(shape, scheduler_flags=(*shape.scheduler_flags, "--replicas-min", "1"))
        self.network = network
        self.disk = disk  # where the first Redis and the blocks are: may be a small one
        self.redis_at = {f"r{n}": self._place(f"r{n}") for n in range(REDISES)}
        self.sentinel_at = {f"q{n}": self._place(f"q{n}") for n in range(SENTINELS)}
        self.scheduler_at = {f"s{n}": self._place(f"s{n}") for n in range(SCHEDULERS)}
        self.proxies = [Proxy(self.ip_here, free_port(), *at) for at in self.scheduler_at.values()]
        self.addresses = ",".join(f"{host}:{port}" for host, port in self.scheduler_at.values())
        self.proxied = ",".join(proxy.address for proxy in self.proxies)
        url = f"redis+sentinel://{','.join(f'{host}:{port}' for host, port in self.sentinel_at.values())}/{SERVICE}"
        self.redises = [self._redis(number, name) for number, name in enumerate(self.redis_at)]
        self.sentinels = [self._sentinel(name) for name in self.sentinel_at]
        self.schedulers = [self._scheduler(name, url) for name in self.scheduler_at]
        self.agents = [self._agent(name) for name in shape.nodes]

    @property
    def processes(self) -> dict[str, Process]:
        return {p.name: p for p in (*self.redises, *self.sentinels, *self.schedulers, *self.agents)}

    @property
    def ip_here(self) -> str:
        return self.network.ip(HERE) if self.network else HOST

    async def __aenter__(self) -> "Cluster":
        try:
            for proxy in self.proxies:
                await proxy.start()
            await start_all(self.redises)
            await start_all(self.sentinels)
            await self.replicated()
            await start_all(self.schedulers)
            await start_all(self.agents)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for group in (self.agents, self.schedulers, self.sentinels, self.redises):
            await stop_all(group)
        for proxy in self.proxies:
            await proxy.close()

    # who is what

    def leader(self) -> Process | None:
        """The scheduler that says it leads, with the highest epoch."""
        found = [(said["epoch"], p) for p in self.schedulers if (said := self._said(p)) and said["role"] == "active"]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def epoch(self) -> int:
        """The highest epoch that a scheduler said it leads with."""
        return max((said["epoch"] for process in self.schedulers if (said := self._said(process))), default=0)

    def standby(self) -> Process:
        leader = self.leader()
        return next(process for process in self.schedulers if process is not leader)

    def _said(self, scheduler: Process) -> dict[str, Any] | None:
        """What it wrote when it last took or gave up its post; a dead one's last words do not count."""
        with suppress(FileNotFoundError, ValueError):
            said: dict[str, Any] = json.loads((self.folder / "ready" / scheduler.name).read_text())
            return said if said["pid"] == scheduler.pid else None
        return None

    async def primary(self) -> Process:
        """The Redis that most Sentinels name; raises TimeoutError where they do not agree."""
        ends_at_s = time.monotonic() + PRIMARY_S
        while time.monotonic() < ends_at_s:
            named = [name for at in self.sentinel_at.values() if (name := await self._named_by(*at))]
            best = max(set(named), key=named.count, default=None)
            if best is not None and named.count(best) >= QUORUM:
                return self.processes[best]
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the Sentinels name no primary in {PRIMARY_S:g} s")

    async def _named_by(self, host: str, port: int) -> str | None:
        async with redis.Redis(host=host, port=port, socket_timeout=1.0, socket_connect_timeout=1.0) as sentinel:
            with suppress(redis.RedisError, OSError):
                found = await sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)  # type: ignore[no-untyped-call]
                if isinstance(found, list | tuple):
                    ip, its_port = (word.decode() for word in found)
                    return next((n for n, at in self.redis_at.items() if at == (ip, int(its_port))), None)
        return None

    async def replicated(self, replicas: int = REDISES - 1) -> None:
        """Return when the primary has so many replicas in sync, and the Sentinels know them; raises TimeoutError."""
        ends_at_s, has = time.monotonic() + PRIMARY_S, -1
        while time.monotonic() < ends_at_s:
            host, port = self.redis_at[(await self.primary()).name]
            async with redis.Redis(host=host, port=port, socket_timeout=1.0, socket_connect_timeout=1.0) as client:
                with suppress(redis.RedisError, OSError):
                    info = await client.info("replication")
                    links = [value for name, value in info.items() if name.startswith("slave") and name[5:].isdigit()]
                    has = sum(link["state"] == "online" for link in links)
                    if has >= replicas:
                        return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the primary has {has} replicas after {PRIMARY_S:g} s, wanted {replicas}")

    # how each is started

    def _place(self, name: str) -> tuple[str, int]:
        return (self.network.add(name) if self.network else HOST), free_port()

    def _inside(self, name: str) -> Sequence[str]:
        return self.network.inside(name) if self.network else ()

    def _redis(self, number: int, name: str) -> Process:
        host, port = self.redis_at[name]
        first_host, first_port = self.redis_at["r0"]
        more = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "5", "--repl-ping-replica-period", "1"]
        more += ["--replica-announce-ip", host, "--protected-mode", "no"]  # the bridge reaches this machine alone
        config = self.folder / name / "redis.conf"  # Sentinel rewrites it: who replicates whom outlives a restart
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"replicaof {first_host} {first_port}\n" if number else "")
        process = redis_process(
            self.disk if number == 0 else self.folder, name, port, *more, host=host, inside=self._inside(name)
        )
        words = [*process.command]
        words.insert(words.index(find_server()) + 1, str(config))
        process.command = tuple(words)
        process.log = self.folder / f"{name}.log"
        return process

    def _sentinel(self, name: str) -> Process:
        host, port = self.sentinel_at[name]
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        first_host, first_port = self.redis_at["r0"]
        lines = (
            f"port {port}",
            f"bind {host}",
            f"dir {folder}",
            "protected-mode no",
            f"sentinel announce-ip {host}",
            f"sentinel monitor {SERVICE} {first_host} {first_port} {QUORUM}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 4000",
        )
        config = folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        command = [*self._inside(name), find_server(), str(config), "--sentinel"]
        return Process(name, command, folder=self.folder, ready=lambda: answers(host, port))

    def _scheduler(self, name: str, url: str) -> Process:
        host, port = self.scheduler_at[name]
        return scheduler_process(
            self.folder,
            name,
            self.shape,
            listen=f"{host}:{port}",
            redis_url=url,
            inside=self._inside(name),
            environment=skew(self.folder, name),
        )

    def _agent(self, name: str) -> Process:
        host, port = self._place(name)
        return agent_process(
            self.folder,
            name,
            self.shape,
            scheduler=self.proxied if name == PROXIED else self.addresses,
            listen=f"{host}:{port}",
            inside=self._inside(name),
            environment=skew(self.folder, name),
            storage=self.disk / "kv",
        )


def skew(folder: Path, name: str) -> Mapping[str, str]:
    """The wall clock of some processes is wrong, by what a file says; monotonic time is left alone."""
    if name not in SKEWED or not FAKETIME.exists():
        return {}
    set_clock(folder, name, SKEWED[name])
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(folder / f"{name}.clock"),
        "FAKETIME_CACHE_DURATION": "1",  # the file is looked at each second
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": os.pathsep.join((str(SKEWED_PATH), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep),
    }


def set_clock(folder: Path, name: str, offset: str) -> None:
    """Move a wall clock, even of a running process: +1h, -1h, +0."""
    (folder / f"{name}.clock").write_text(f"{offset}\n")


class SmallDisk:
    """A tmpfs that can be filled up. Use as `with SmallDisk(...)`; needs root."""

    def __init__(self, folder: Path, *, mib: int) -> None:
        self.folder = folder
        self._mib = mib
        self._filler = folder / "filler"

    def __enter__(self) -> "SmallDisk":
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={self._mib}m", "tmpfs", str(self.folder)]
        subprocess.run(words, check=True, stderr=subprocess.PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False)

    def fill(self) -> None:
        """Leave no byte free."""
        with self._filler.open("ab") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


def no_small_disk() -> str:
    """Why a small disk cannot be had here; empty where it can."""
    if os.getuid() != 0:
        return "needs root"
    try:
        with tempfile.TemporaryDirectory() as folder, SmallDisk(Path(folder), mib=1):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"a tmpfs cannot be mounted: {error}"
