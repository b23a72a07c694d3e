"""A real Redis for tests: the embedded server in a folder of its own, one cell name per test."""

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from redis.asyncio import Redis

import support
from dualpath.scheduler.stores.embedded import EmbeddedRedis, find_server
from dualpath.scheduler.stores.redis import RedisStore, RedisTiming

_cells = itertools.count(1)


@contextmanager
def running_redis(folder: Path, *, options: Sequence[str] = ()) -> Iterator[EmbeddedRedis]:
    """A server for as long as the block lasts, for tests with and without an event loop."""
    server = EmbeddedRedis(folder, options=options)
    asyncio.run(server.start())
    try:
        yield server
    finally:
        asyncio.run(server.stop())


@contextmanager
def running_sentinel(folder: Path, *, primary_port: int, service: str, down_after_ms: int) -> Iterator[int]:
    """One Sentinel that decides alone; yields its port. It knows the replicas of the primary when the block begins."""
    folder.mkdir()
    port = support.find_free_port()
    (folder / "sentinel.conf").write_text(
        f"port {port}\n"
        f"sentinel monitor {service} 127.0.0.1 {primary_port} 1\n"
        f"sentinel down-after-milliseconds {service} {down_after_ms}\n"
        f"sentinel failover-timeout {service} 2000\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([find_server(), "sentinel.conf", "--sentinel"], cwd=folder, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def opened(
    url: str, *, cell: str, require_durable: bool = True, timing: RedisTiming | None = None
) -> AsyncIterator[RedisStore]:
    """A store that is closed at the end of the block."""
    store = await RedisStore.open(url, cell=cell, require_durable=require_durable, timing=timing)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def admin(url: str) -> AsyncIterator[Redis]:
    """A plain client, to look and to meddle."""
    client = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


def fresh_cell() -> str:
    """A cell name that no other test of this run uses: cheaper than emptying the server."""
    return f"cell-{next(_cells)}"


async def wait_for_replicas(sentinel_port: int, service: str, count: int) -> None:
    """Wait until the Sentinel knows so many replicas that follow the primary."""
    async with Redis(port=sentinel_port, decode_responses=True) as sentinel:
        for _ in range(400):
            replicas = await sentinel.sentinel_slaves(service)
            if sum(found["master-link-status"] == "ok" for found in replicas) >= count:
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the Sentinel does not see {count} replicas of {service}")


async def wait_for_another_primary(sentinel_port: int, service: str, port: int) -> None:
    """Wait until the Sentinel names a primary at another port."""
    async with Redis(port=sentinel_port, decode_responses=True) as sentinel:
        for _ in range(400):
            address = await sentinel.sentinel_get_master_addr_by_name(service)
            if isinstance(address, tuple) and address[1] != port:
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the Sentinel still names port {port} for {service}")
