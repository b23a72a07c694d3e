"""Is a cell idle: does it hold anything for anybody. Asked over the wire and from the keys in Redis."""

import asyncio
import time
from dataclasses import dataclass
from typing import cast

import redis.asyncio as redis

from dualpath.client import Client
from dualpath.model.errors import DualPathError
from dualpath.scheduler.stores.redis_keys import CellKeys
from dualpath.v1 import admin_pb2

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Stored:
    """Sizes of what a cell has in Redis."""

    keys: int
    turns: int
    prompts: int
    records: int  # open ledger records
    idempotency: int
    contexts: int
    waiting: int  # turns in any line
    events: int
    memory_bytes: int


def held(status: admin_pb2.CellStatus) -> list[str]:
    """What the cell still holds; empty: nothing."""
    found = []
    if status.waiting or status.running:
        found.append(f"{status.waiting} turns wait, {status.running} run")
    for group in status.groups:
        for engine in group.engines:
            if engine.open_turns or engine.open_tokens:
                found.append(f"{engine.engine_id} has {engine.open_turns} open turns, {engine.open_tokens} tokens")
            if engine.free_hbm_tokens != engine.hbm_tokens:
                found.append(f"{engine.engine_id} has {engine.free_hbm_tokens} of {engine.hbm_tokens} HBM tokens free")
        for node in group.nodes:
            if node.load.buffer_used_bytes or node.load.read_queue_tokens:
                load = node.load
                found.append(
                    f"{node.info.node_id} has {load.buffer_used_bytes} buffer bytes, {load.read_queue_tokens} to read"
                )
    return found


async def wait_until_idle(address: str, *, groups: int, timeout_s: float) -> list[str]:
    """What is still held, or missing, when the time is over; empty as soon as all groups are there and idle."""
    ends_at_s = time.monotonic() + timeout_s
    found = ["the scheduler was not asked yet"]
    async with Client(address) as client:
        while time.monotonic() < ends_at_s:
            try:
                status = await client.status()
            except DualPathError as error:
                found = [f"no status: {error}"]
            else:
                found = held(status)
                if len(status.groups) != groups:
                    found.append(f"{len(status.groups)} groups are there, wanted {groups}")
                if not found:
                    return []
            await asyncio.sleep(POLL_S)
    return found


async def stored(client: "redis.Redis", cell: str) -> Stored:
    keys = CellKeys(cell)
    names = cast(set[bytes], await client.smembers(keys.lines))
    lines = [int(await client.zcard(keys.line(name.decode()))) for name in names]
    return Stored(
        keys=int(await client.dbsize()),
        turns=int(await client.hlen(keys.turns)),
        prompts=int(await client.hlen(keys.prompts)),
        records=int(await client.hlen(keys.records)),
        idempotency=int(await client.hlen(keys.idempotency)),
        contexts=int(await client.hlen(keys.contexts)),
        waiting=sum(lines),
        events=int(await client.xlen(keys.events)),
        memory_bytes=int((await client.info("memory"))["used_memory"]),
    )
