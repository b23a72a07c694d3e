"""A failover that an operator asks for: the old primary lives on for ten seconds, and nobody follows it any more."""

import time
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

import redis_support
import support
from dualpath.model.errors import OutcomeUnknown, Refused, Stale
from dualpath.model.ids import TurnId
from dualpath.scheduler.lifecycle.changes import ChangeSet, PutPrompt
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.redis import RedisTiming

SERVICE, LEASE_S = "cell", 3.0
MOVES_ON_S = 5.0  # after the Sentinel named another one; by itself the old one would refuse writes ten seconds later


async def test_a_write_without_replicas_asks_the_sentinels_again(tmp_path: Path) -> None:
    ports = [support.find_free_port() for _ in range(3)]
    replicates = ("--replicaof", f"127.0.0.1 {ports[0]}")
    redises = [
        EmbeddedRedis(tmp_path / f"redis{n}", options=("--port", str(port), *(replicates if n else ())))
        for n, port in enumerate(ports)
    ]
    async with AsyncExitStack() as closing:
        for server in redises:
            await closing.enter_async_context(server)
        running = redis_support.running_sentinel(
            tmp_path / "sentinel", primary_port=ports[0], service=SERVICE, down_after_ms=500
        )
        sentinel = closing.enter_context(running)
        await redis_support.wait_for_replicas(sentinel, SERVICE, 2)
        url = f"redis+sentinel://127.0.0.1:{sentinel}/{SERVICE}"
        timing = RedisTiming(replicas_min=1, replica_wait_s=0.2)
        store = await closing.enter_async_context(redis_support.opened(url, cell="test", timing=timing))
        tenure = await store.acquire("ann", LEASE_S)

        async with Redis(port=sentinel) as client:
            await client.execute_command("SENTINEL", "FAILOVER", SERVICE)  # type: ignore[no-untyped-call]
        await redis_support.wait_for_another_primary(sentinel, SERVICE, ports[0])
        began_s = time.monotonic()
        outcome = ""
        while not outcome:
            try:
                await store.apply([ChangeSet((PutPrompt(TurnId("t1"), b"prompt"),))], tenure)
                outcome = "applied"
            except Stale as error:  # the new primary never had this tenure's last writes
                outcome = error.reason
            except (OutcomeUnknown, Refused):
                assert time.monotonic() - began_s < MOVES_ON_S

        assert outcome in ("applied", "STORE_LOST_WRITES", "STALE")
