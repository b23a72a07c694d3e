"""Builds one scheduler process and runs it: the only place where stores and servers are chosen and joined."""

import asyncio
import gc
import json
import os
import signal
import socket
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
import structlog
import uvicorn
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from dualpath.model.errors import Refused
from dualpath.scheduler.api.admin import AdminService
from dualpath.scheduler.api.agents import AgentsService
from dualpath.scheduler.api.http import build_http
from dualpath.scheduler.api.turns import TurnsService
from dualpath.scheduler.policy.registry import policy_named
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.ports import TurnStore
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.keeper import Keeper
from dualpath.scheduler.service.post import Post
from dualpath.scheduler.settings import SchedulerSettings
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.scheduler.stores.redis import RedisStore, RedisTiming
from dualpath.v1 import admin_pb2_grpc, agents_pb2_grpc, turns_pb2_grpc
from dualpath.wire.outbox import MESSAGE_OPTIONS

SERVICES = ("dualpath.v1.Turns", "dualpath.v1.Agents", "dualpath.v1.Admin")
SERVER_OPTIONS = (
    *MESSAGE_OPTIONS,
    # clients and agents ping each 10 s; a server that calls that abuse would cut silent streams (FAULTS K4)
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
STOP_GRACE_S = 0.5
CONNECT_MAX_S = 2.0
REPLY_MIN_S = 0.5  # Redis gets this long to answer, however short the lease
BEAT_MAX_S = 1.0  # each stream carries something at least this often
EVERY_HOST = ("", "0.0.0.0", "[::]")
# open turns live long and hold no cycles: a collector at its defaults walks all of them again and again
COLLECT_AFTER_OBJECTS, COLLECT_OLDER_AFTER = 50_000, (20, 100)
log = structlog.get_logger("dualpath.scheduler")


class SystemClock:
    """The machine's monotonic clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RandomIds:
    """Turn ids that no other scheduler will ever make."""

    def turn_id(self) -> str:
        return uuid.uuid4().hex


CLOCK = SystemClock()


async def serve(settings: SchedulerSettings) -> None:
    """Run a scheduler until SIGTERM or SIGINT. It stands by while another one leads the cell."""
    collect_seldom()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as closing:
        _check_port(settings.listen)
        store, store_name = await _open_store(settings, closing)
        servers = Servers(settings, store_name)
        await servers.start(closing)
        keeper = Keeper(
            servers.post,
            partial(_open_cell, settings, store, servers.post.address),
            CLOCK,
            store_lease_s=settings.store_lease_s,
            beat_s=min(BEAT_MAX_S, settings.lease_s / 3),
            changed=servers.tell,
        )
        running = asyncio.create_task(keeper.run())
        closing.push_async_callback(_cancelled, running)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()
        log.info("scheduler stops")


def collect_seldom() -> None:
    """Set the process's garbage collector for a scheduler."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *COLLECT_OLDER_AFTER)


async def _open_store(settings: SchedulerSettings, closing: AsyncExitStack) -> tuple[TurnStore, str]:
    if settings.store == "memory":
        return MemoryStore(CLOCK), "memory (turns are lost when this process ends)"
    url, name = settings.redis_url, "redis"
    if not url:
        settings.data.mkdir(parents=True, exist_ok=True)
        embedded = EmbeddedRedis(settings.data / "redis", progress=lambda text: log.info("embedded redis", what=text))
        url = await embedded.start()
        closing.push_async_callback(embedded.stop)
        name = f"embedded redis in {settings.data / 'redis'}"
    store = await RedisStore.open(
        url,
        cell=settings.cell,
        timing=_timing(settings),
        require_durable=not settings.allow_unsafe_redis,
    )
    for warning in store.warnings:
        log.warning("redis is not safe", why=warning)
    closing.push_async_callback(store.close)
    return store, name


def _timing(settings: SchedulerSettings) -> RedisTiming:
    """A server that is silent must be given up while the lease still holds."""
    reply_timeout_s = max(REPLY_MIN_S, settings.store_lease_s / 2)
    return RedisTiming(
        connect_timeout_s=min(CONNECT_MAX_S, reply_timeout_s),
        reply_timeout_s=reply_timeout_s,
        replicas_min=settings.replicas_min,
        replica_wait_s=reply_timeout_s / 2,
    )


async def _open_cell(settings: SchedulerSettings, store: TurnStore, address: str) -> Cell:
    """Become the cell's scheduler; raises Leased while another one is."""
    return await Cell.open(
        store,
        cell=settings.cell,
        owner=f"{socket.gethostname()}|{address}",
        clock=CLOCK,
        ids=RandomIds(),
        policy=policy_named(settings.policy),
        limits=PolicyLimits(
            settings.alpha_tokens,
            settings.beta_tokens,
            settings.high_mark_factor,
            skip_ahead_turns=settings.skip_ahead_turns,
            overtakes_max=settings.overtakes_max,
        ),
        bounds=ServiceBounds(
            lease_s=settings.lease_s,
            report_s=min(1.0, settings.lease_s / 3),
            attempts_max=settings.attempts_max,
            waiting_turns_max=settings.waiting_turns_max,
            waiting_tokens_max=settings.waiting_tokens_max,
            waiting_bytes_max=settings.waiting_bytes_max,
            tenant_turns_max=settings.tenant_turns_max,
            tenant_tokens_max=settings.tenant_tokens_max,
            order=settings.order,
            slow_start_s=settings.slow_start_s,
        ),
        store_lease_s=settings.store_lease_s,
    )


class Servers:
    """gRPC and HTTP around one post. They listen from the start; who stands by says so."""

    def __init__(self, settings: SchedulerSettings, store_name: str) -> None:
        self._settings = settings
        self._store_name = store_name
        self._health = health_aio.HealthServicer()
        self._led = False
        self.post = Post(CLOCK, address="")

    async def start(self, closing: AsyncExitStack) -> None:
        """Bind the ports and serve; raises Refused(PORT_IN_USE)."""
        settings, post = self._settings, self.post
        server = grpc.aio.server(options=SERVER_OPTIONS)
        turns_pb2_grpc.add_TurnsServicer_to_server(TurnsService(post), server)
        agents_pb2_grpc.add_AgentsServicer_to_server(AgentsService(post), server)
        admin_pb2_grpc.add_AdminServicer_to_server(AdminService(post, store_name=self._store_name), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise _port_taken(settings.listen, str(error)) from error
        post.address = settings.advertise or _dialable(settings.listen, port)
        await self._set_health()
        await server.start()
        closing.push_async_callback(server.stop, STOP_GRACE_S)
        closing.push_async_callback(self._health.enter_graceful_shutdown)
        if settings.http:
            await _start_http(settings.http, post, self._store_name, closing)

    async def tell(self) -> None:
        """Say to the health service, to who reads our output and in the ready file whether this scheduler leads."""
        await self._set_health()
        post, settings = self.post, self._settings
        if post.is_active:
            epoch = post.cell.core.tenure.epoch
            what = f"epoch {epoch}, policy {settings.policy}, store {self._store_name}"
            print(f"scheduler ready on {post.address} ({what})", flush=True)
            self._write_ready_file("active", epoch)
        else:
            print(f"scheduler stands by on {post.address} (active: {post.active_address or 'not known'})", flush=True)
            if self._led:  # a file that was never there would promise more than there is
                self._write_ready_file("standby", 0)

    async def _set_health(self) -> None:
        """ "" is the process: it lives. The services serve where this scheduler is the active one."""
        status = health_pb2.HealthCheckResponse
        active = status.SERVING if self.post.is_active else status.NOT_SERVING
        await self._health.set("", status(status=status.SERVING))
        for name in SERVICES:
            await self._health.set(name, status(status=active))

    def _write_ready_file(self, role: str, epoch: int) -> None:
        self._led = True
        if self._settings.ready_file is not None:
            body = {"address": self.post.address, "role": role, "epoch": epoch, "pid": os.getpid()}
            _write_whole(self._settings.ready_file, json.dumps(body))


def _dialable(listen: str, port: int) -> str:
    """Where others find this scheduler: an address that stands for all of the machine's is no address to dial."""
    host = listen.rpartition(":")[0]
    return f"{socket.gethostname() if host in EVERY_HOST else host}:{port}"


async def _start_http(address: str, post: Post, store_name: str, closing: AsyncExitStack) -> None:
    _check_port(address)
    host, _, port = address.rpartition(":")
    config = uvicorn.Config(build_http(post, store_name), host=host, port=int(port), log_level="warning")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())  # serve() would take the signal handlers over

    async def stop() -> None:
        server.should_exit = True
        await asyncio.wait([task], timeout=2.0)
        task.cancel()

    closing.push_async_callback(stop)


def _check_port(address: str) -> None:
    """Bind once before anything is started, so that the error comes at once and names the port."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise _port_taken(address, "not host:port")
    if int(port) == 0:
        return
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(port)))
    except OSError as error:
        raise _port_taken(address, error.strerror or str(error)) from error


def _port_taken(address: str, why: str) -> Refused:
    return Refused(f"cannot listen on {address}: {why}", retry_after_s=1.0, reason="PORT_IN_USE")


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
