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
from dualpath.scheduler.settings import SchedulerSettings
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.scheduler.stores.redis import RedisStore
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


async def serve(settings: SchedulerSettings) -> None:
    """Run a scheduler until SIGTERM or SIGINT. Raises Stale if another one takes the cell over."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *COLLECT_OLDER_AFTER)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as closing:
        _check_port(settings.listen)
        store, store_name = await _open_store(settings, closing)
        cell = await _open_cell(settings, store)
        closing.push_async_callback(cell.close)
        running = asyncio.create_task(cell.run(store_lease_s=settings.store_lease_s))
        closing.push_async_callback(_cancelled, running)
        address = await _start_servers(settings, cell, store_name, closing)
        _announce(settings, cell, store_name, address)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()
        log.info("scheduler stops")


async def _open_store(settings: SchedulerSettings, closing: AsyncExitStack) -> tuple[TurnStore, str]:
    if settings.store == "memory":
        return MemoryStore(SystemClock()), "memory (turns are lost when this process ends)"
    url, name = settings.redis_url, "redis"
    if not url:
        settings.data.mkdir(parents=True, exist_ok=True)
        embedded = EmbeddedRedis(settings.data / "redis", progress=lambda text: log.info("embedded redis", what=text))
        url = await embedded.start()
        closing.push_async_callback(embedded.stop)
        name = f"embedded redis in {settings.data / 'redis'}"
    store = await RedisStore.open(url, cell=settings.cell, require_durable=not settings.allow_unsafe_redis)
    for warning in store.warnings:
        log.warning("redis is not safe", why=warning)
    closing.push_async_callback(store.close)
    return store, name


async def _open_cell(settings: SchedulerSettings, store: TurnStore) -> Cell:
    """Wait for the cell's lease as long as another scheduler may hold it, then take over."""
    while True:
        try:
            return await Cell.open(
                store,
                cell=settings.cell,
                owner=f"{socket.gethostname()}|{settings.listen}",
                clock=SystemClock(),
                ids=RandomIds(),
                policy=policy_named(settings.policy),
                limits=PolicyLimits(settings.alpha_tokens, settings.beta_tokens, settings.high_mark_factor),
                bounds=ServiceBounds(
                    lease_s=settings.lease_s,
                    report_s=min(1.0, settings.lease_s / 3),
                    attempts_max=settings.attempts_max,
                    waiting_turns_max=settings.waiting_turns_max,
                ),
                store_lease_s=settings.store_lease_s,
            )
        except Refused as error:
            if error.reason != "LEASED":
                raise
            log.info("standing by", why=str(error))
            await asyncio.sleep(min(error.retry_after_s, settings.store_lease_s))


async def _start_servers(settings: SchedulerSettings, cell: Cell, store_name: str, closing: AsyncExitStack) -> str:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    turns_pb2_grpc.add_TurnsServicer_to_server(TurnsService(cell), server)
    agents_pb2_grpc.add_AgentsServicer_to_server(AgentsService(cell), server)
    admin_pb2_grpc.add_AdminServicer_to_server(AdminService(cell, store_name=store_name), server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    for name in ("", *SERVICES):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(settings.listen)
    except RuntimeError as error:
        raise _port_taken(settings.listen, str(error)) from error
    await server.start()
    closing.push_async_callback(server.stop, STOP_GRACE_S)
    closing.push_async_callback(health.enter_graceful_shutdown)
    if settings.http:
        await _start_http(settings.http, cell, store_name, closing)
    return f"{settings.listen.rpartition(':')[0]}:{port}"


async def _start_http(address: str, cell: Cell, store_name: str, closing: AsyncExitStack) -> None:
    _check_port(address)
    host, _, port = address.rpartition(":")
    config = uvicorn.Config(build_http(cell, store_name), host=host, port=int(port), log_level="warning")
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


def _announce(settings: SchedulerSettings, cell: Cell, store_name: str, address: str) -> None:
    epoch = cell.core.tenure.epoch
    print(f"scheduler ready on {address} (epoch {epoch}, policy {settings.policy}, store {store_name})", flush=True)
    if settings.ready_file is not None:
        _write_whole(settings.ready_file, json.dumps({"address": address, "epoch": epoch, "pid": os.getpid()}))


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(name, path)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
