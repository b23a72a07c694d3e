"""A real Redis for tests: the embedded server in a folder of its own, one cell name per test."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from redis.asyncio import Redis

from dualpath.scheduler.stores.embedded import EmbeddedRedis
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
