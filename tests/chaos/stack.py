"""The processes of a cell: Redis, schedulers, agents; how each is started and where it is reached."""

import asyncio
import itertools
import json
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from dualpath.scheduler.stores.embedded import find_server

from .processes import Process

HOST = "127.0.0.1"
CONNECT_S = 0.2
PORTS = range(20_000, 32_000)  # below those the kernel gives to outgoing connections: a freed port stays free
CELL = "chaos"
ENGINE = "emulated"
# small blocks of real bytes, each checked whole: 2 layers x 64 tokens x 64 B
ENGINE_OPTIONS: Mapping[str, Any] = {"num_layers": 2, "bytes_per_token_layer": 64, "check_bytes": True}


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a cell, and its times."""

    prefill: int = 3
    decode: int = 3
    lease_s: float = 3.0
    store_lease_s: float = 3.0
    beta_tokens: int = 400_000
    hbm_tokens: int = 200_000
    buffer_bytes: int = 64 << 20
    engine_options: Mapping[str, Any] = field(default_factory=lambda: dict(ENGINE_OPTIONS))
    scheduler_program: Sequence[str] = ("-m", "dualpath.scheduler")
    scheduler_environment: Mapping[str, str] = field(default_factory=dict)
    scheduler_flags: Sequence[str] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*(f"p{n}" for n in range(self.prefill)), *(f"d{n}" for n in range(self.decode)))


class Stack:
    """Use as `async with Stack(...)`: one Redis, one scheduler, an agent per node; each in `by_name`."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape
        self.redis_port = free_port()
        self.address = f"{HOST}:{free_port()}"
        self.http = f"{HOST}:{free_port()}"
        self.redis = redis_process(folder, "redis", self.redis_port)
        self.scheduler = scheduler_process(
            folder, "scheduler", shape, listen=self.address, http=self.http, redis_url=self.redis_url
        )
        self.agents = [agent_process(folder, name, shape, scheduler=self.address) for name in shape.nodes]

    @property
    def redis_url(self) -> str:
        return f"redis://{HOST}:{self.redis_port}/0"

    @property
    def by_name(self) -> dict[str, Process]:
        return {process.name: process for process in (self.redis, self.scheduler, *self.agents)}

    async def __aenter__(self) -> "Stack":
        try:
            for process in (self.redis, self.scheduler):
                process.start()
                await process.ready()
            await start_all(self.agents)
        except BaseException:
            await stop_all([*self.by_name.values()])
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await stop_all(self.agents)
        await stop_all([self.scheduler])
        await stop_all([self.redis])


async def start_all(processes: Sequence[Process]) -> None:
    for process in processes:
        process.start()
    await asyncio.gather(*(process.ready() for process in processes))


async def stop_all(processes: Sequence[Process]) -> None:
    for process in processes:
        process.end()
    await asyncio.gather(*(process.gone() for process in processes))


def redis_process(
    folder: Path, name: str, port: int, *more: str, host: str = HOST, inside: Sequence[str] = ()
) -> Process:
    """A server that syncs each write before it answers."""
    data = folder / name
    data.mkdir(parents=True, exist_ok=True)
    options = {
        "port": port,
        "bind": host,
        "dir": data,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    flags = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    command = [*inside, find_server(), *flags, *more]
    return Process(name, command, folder=folder, ready=lambda: answers(host, port))


def scheduler_process(
    folder: Path,
    name: str,
    shape: Shape,
    *,
    listen: str,
    redis_url: str,
    http: str = "",
    inside: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Process:
    options = {
        "listen": listen,
        "http": http,
        "ready-file": folder / "ready" / name,
        "cell": CELL,
        "redis-url": redis_url,
        "lease-s": shape.lease_s,
        "store-lease-s": shape.store_lease_s,
        "beta-tokens": shape.beta_tokens,
    }
    (folder / "ready").mkdir(parents=True, exist_ok=True)
    command = [*inside, sys.executable, *shape.scheduler_program, *_flags(options), *shape.scheduler_flags]
    added = {**shape.scheduler_environment, **(environment or {})}
    return Process(name, command, folder=folder, ready=lambda: _listens(listen), environment=added)


def agent_process(
    folder: Path,
    name: str,
    shape: Shape,
    *,
    scheduler: str,
    listen: str = "",
    inside: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    storage: Path | None = None,
) -> Process:
    """A node of one engine that leads a group of its own; nodes of the same role are named p0, p1 or d0, d1."""
    ready = folder / "ready" / name
    options = {
        "role": "prefill" if name.startswith("p") else "decode",
        "node-id": name,
        "listen": listen or f"{HOST}:{free_port()}",  # kept over restarts
        "group-id": f"group-{name}",
        "cell": CELL,
        "scheduler": scheduler,
        "engine": ENGINE,
        "engine-options": json.dumps(dict(shape.engine_options)),
        "storage": storage or folder / "kv",
        "data": folder / name,
        "buffer-bytes": shape.buffer_bytes,
        "hbm-tokens": shape.hbm_tokens,
        "drain-s": 3.0,
        "ready-file": ready,
    }
    command = [*inside, sys.executable, "-m", "dualpath.engine_agent", *_flags(options), "--no-durable-storage"]
    process = Process(name, command, folder=folder, ready=lambda: _is_of(ready, process), environment=environment)
    return process


_ports = itertools.cycle(random.sample(PORTS, len(PORTS)))


def free_port() -> int:
    """A port on loopback that nobody holds, and that this process has not given away before."""
    for port in itertools.islice(_ports, len(PORTS)):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"no free port from {PORTS.start} to {PORTS.stop}")


def _flags(options: Mapping[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _is_of(ready: Path, process: Process) -> bool:
    """The file of an earlier start does not count."""
    with suppress(FileNotFoundError, ValueError):
        return bool(json.loads(ready.read_text())["pid"] == process.pid)
    return False


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=CONNECT_S):
        return True
    return False


def answers(host: str, port: int) -> bool:
    """Whether a Redis there answers a PING."""
    with suppress(OSError), socket.create_connection((host, port), timeout=CONNECT_S) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False
