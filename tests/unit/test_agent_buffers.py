"""The PE or DE buffer: a hard bound, first come first served, every release once."""

import asyncio
import random

import pytest

from dualpath.engine_agent.traffic.buffers import Buffer, BufferPool
from dualpath.model.errors import Refused, Rejected


async def test_a_second_reservation_waits_until_the_first_is_released() -> None:
    pool = BufferPool(100, name="PE buffer")
    first = await pool.reserve(80)
    second = asyncio.create_task(pool.reserve(40))
    await asyncio.sleep(0)

    assert not second.done()
    pool.release(first)
    assert len((await second).memory) == 40
    assert pool.used_bytes == 40


async def test_a_small_reservation_never_overtakes_a_large_one() -> None:
    pool = BufferPool(100, name="PE buffer")
    first = await pool.reserve(60)
    large = asyncio.create_task(pool.reserve(90))
    small = asyncio.create_task(pool.reserve(10))
    await asyncio.sleep(0)
    assert not small.done()

    pool.release(first)
    await asyncio.gather(large, small)

    assert pool.used_bytes == 100


async def test_releasing_twice_changes_nothing() -> None:
    pool = BufferPool(100, name="PE buffer")
    buffer = await pool.reserve(60)

    pool.release(buffer)
    pool.release(buffer)

    assert pool.used_bytes == 0


async def test_a_reservation_larger_than_the_pool_is_rejected_with_both_numbers() -> None:
    with pytest.raises(Rejected, match=r"DE buffer holds 100 bytes, the turn needs 101"):
        await BufferPool(100, name="DE buffer").reserve(101)


async def test_waiters_are_bounded() -> None:
    pool = BufferPool(10, name="PE buffer", waiters_max=1)
    await pool.reserve(10)
    waiting = asyncio.create_task(pool.reserve(5))
    await asyncio.sleep(0)

    with pytest.raises(Refused):
        await pool.reserve(5)
    waiting.cancel()


async def test_cancelled_waits_leave_nothing_reserved() -> None:
    chance = random.Random(7)
    pool = BufferPool(100, name="PE buffer")
    held: list[Buffer] = []
    waiting: list[asyncio.Task[Buffer]] = []
    for _ in range(500):
        waiting.append(asyncio.create_task(pool.reserve(chance.randint(1, 60))))
        await asyncio.sleep(0)
        if chance.random() < 0.5:
            chance.choice(waiting).cancel()
        if held and chance.random() < 0.6:
            pool.release(held.pop(chance.randrange(len(held))))
        await asyncio.sleep(0)
        held += [task.result() for task in waiting if task.done() and not task.cancelled()]
        waiting = [task for task in waiting if not task.done()]
        assert sum(buffer.nbytes for buffer in held) <= pool.used_bytes <= 100

    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    held += [task.result() for task in waiting if not task.cancelled() and task.exception() is None]
    for buffer in held:
        pool.release(buffer)
    assert pool.used_bytes == 0
