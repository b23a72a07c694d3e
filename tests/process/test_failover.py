"""Two schedulers of one cell under load: the active one is killed or stands still, Redis fails over or forgets."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

import redis_support
import support
from dualpath.cli.supervisor import Child
from dualpath.client import Client, TurnSpec
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.v1 import admin_pb2, admin_pb2_grpc
from failover_support import NEW_TOKENS, WAIT_S, Cell, Load, loaded, running

LEASE_S = 3.0  # as in production
SHORT_LEASE_S = 0.5
EPISODES = 4  # of each kind with the short lease
TAIL_BYTES = 4096
SERVICE = "cell"


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with redis_support.running_redis(tmp_path / "redis") as server:
        yield server


def client_of(cell: Cell) -> Client:
    return Client(cell.addresses, silent_s=min(3.0, cell.lease_s))


def role_of(scheduler: Child) -> str:
    role: str = json.loads(scheduler.spec.ready_file.read_text())["role"]
    return role


async def ask(scheduler: Child) -> admin_pb2.CellStatus:
    address = json.loads(scheduler.spec.ready_file.read_text())["address"]
    async with grpc.aio.insecure_channel(address) as channel:
        status: admin_pb2.CellStatus = await admin_pb2_grpc.AdminStub(channel).Status(admin_pb2.StatusRequest())
        return status


async def hurt(cell: Cell, load: Load, client: Client, number: signal.Signals) -> tuple[Child, float]:
    """Kill or stop the active scheduler; returns it and the seconds to the first new assignment of the other one."""
    victim, epoch = await cell.active(client)
    began_s = time.monotonic()
    victim.signal(number)
    while (new_epoch := (await client.status()).scheduler_epoch) == epoch:  # noqa: ASYNC110 (another process's)
        await asyncio.sleep(0.01)
    took_s = await load.new_assignment_after(began_s)
    successor, _ = await cell.active(client)
    assert successor is not victim
    assert new_epoch == epoch + 1
    return victim, took_s


async def test_a_killed_scheduler_is_replaced_again_and_again(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    cell, took = Cell(tmp_path, own_redis.url, lease_s=SHORT_LEASE_S), []
    async with running(cell), client_of(cell) as client, loaded(client) as load:
        for _ in range(EPISODES):
            victim, took_s = await hurt(cell, load, client, signal.SIGKILL)
            took.append(took_s)
            await cell.restart(victim)

    print("takeover after kill -9, lease 0.5 s:", [round(t, 2) for t in took])


async def test_a_scheduler_that_stood_still_finds_itself_deposed_and_stands_by(
    own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    cell, took = Cell(tmp_path, own_redis.url, lease_s=SHORT_LEASE_S), []
    async with running(cell), client_of(cell) as client, loaded(client) as load:
        for _ in range(EPISODES):
            victim, took_s = await hurt(cell, load, client, signal.SIGSTOP)
            took.append(took_s)
            _, epoch = await cell.active(client)
            victim.signal(signal.SIGCONT)
            await support.wait_until(lambda v=victim: role_of(v) == "standby", timeout_s=WAIT_S)  # type: ignore[misc]
            assert (await cell.active(client))[1] == epoch
            with pytest.raises(grpc.aio.AioRpcError, match="stands by, the active one is"):
                await ask(victim)

    print("takeover after SIGSTOP, lease 0.5 s:", [round(t, 2) for t in took])


async def test_with_the_lease_of_production(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    cell = Cell(tmp_path, own_redis.url, lease_s=LEASE_S)
    async with running(cell), client_of(cell) as client, loaded(client) as load:
        victim, killed_s = await hurt(cell, load, client, signal.SIGKILL)
        await cell.restart(victim)
        victim, stopped_s = await hurt(cell, load, client, signal.SIGSTOP)
        victim.signal(signal.SIGCONT)

    print(f"takeover with a lease of {LEASE_S} s: kill -9 {killed_s:.2f} s, SIGSTOP {stopped_s:.2f} s")


async def test_the_line_keeps_its_order_across_a_takeover(own_redis: EmbeddedRedis, tmp_path: Path) -> None:
    cell = Cell(tmp_path, own_redis.url, lease_s=SHORT_LEASE_S)
    prefill, decode = cell.agents
    async with running(cell, decode), client_of(cell) as client:
        handles = [
            await client.submit(TurnSpec(tuple(range(100, 250)), NEW_TOKENS, forced_tokens=True)) for _ in range(60)
        ]
        await support.wait_until(lambda: all(handle.turn_id for handle in handles), timeout_s=WAIT_S)
        victim, _ = await cell.active(client)
        victim.signal(signal.SIGKILL)
        prefill.start()
        await asyncio.gather(*(handle.result() for handle in handles))
        stories = [await client.explain(handle.turn_id) for handle in handles]

    # all were rebuilt at one time, from which their decisions count
    taken_s = [next(d.after_s for d in story.decisions if d.step == "prefill") for story in stories]
    assert taken_s == sorted(taken_s)
    assert taken_s[0] < taken_s[-1]


async def test_a_redis_that_forgot_its_last_writes_makes_the_scheduler_begin_anew(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path / "redis")
    await redis.start()
    cell = Cell(tmp_path, redis.url, lease_s=SHORT_LEASE_S)
    try:
        async with running(cell), client_of(cell) as client, loaded(client) as load:
            _, epoch = await cell.active(client)
            await redis.stop()
            tail = max((tmp_path / "redis" / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
            os.truncate(tail, tail.stat().st_size - TAIL_BYTES)
            began_s = time.monotonic()
            await redis.start()
            await load.new_assignment_after(began_s)
            assert (await cell.active(client))[1] > epoch
    finally:
        await redis.stop()


async def test_sentinels_name_a_new_primary_and_no_accepted_turn_is_lost(tmp_path: Path) -> None:
    ports = [support.find_free_port() for _ in range(3)]
    replicates = ("--replicaof", f"127.0.0.1 {ports[0]}")
    redises = [
        EmbeddedRedis(tmp_path / f"redis{n}", options=("--port", str(port), *(replicates if n else ())))
        for n, port in enumerate(ports)
    ]
    async with AsyncExitStack() as closing:
        servers = [await closing.enter_async_context(r) for r in redises]
        sentinel = closing.enter_context(
            redis_support.running_sentinel(
                tmp_path / "sentinel", primary_port=ports[0], service=SERVICE, down_after_ms=500
            )
        )
        await redis_support.wait_for_replicas(sentinel, SERVICE, 2)
        url = f"redis+sentinel://127.0.0.1:{sentinel}/{SERVICE}"
        cell = Cell(tmp_path, url, lease_s=LEASE_S, flags={"replicas-min": 1})
        async with running(cell), client_of(cell) as client, loaded(client) as load:
            began_s = time.monotonic()
            assert servers[0].pid is not None
            os.kill(servers[0].pid, signal.SIGKILL)
            await redis_support.wait_for_another_primary(sentinel, SERVICE, ports[0])
            took_s = await load.new_assignment_after(began_s)

    print(f"first new assignment {took_s:.2f} s after the loss of the primary")
