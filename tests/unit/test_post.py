"""Who leads: a scheduler stands by, leads while its lease certainly holds, and is deposed."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from cell_support import CountingIds
from dualpath.model.errors import Refused, Standby
from dualpath.scheduler.policy.registry import policy_named
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.ports import Tenure
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.keeper import Keeper
from dualpath.scheduler.service.post import Post
from dualpath.scheduler.stores.memory import MemoryStore

LEASE_S = 3.0
YIELDS = 30  # let everything that is ready run


class SteppedClock:
    """Sleepers wake when a test moves the time past them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (self.now_s + seconds, self._count, event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        ends_at_s = self.now_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= ends_at_s:
            at_s, _, event = heapq.heappop(self._sleepers)
            self.now_s = max(self.now_s, at_s)
            event.set()
            await _settle()
        self.now_s = ends_at_s
        await _settle()


class AwayStore(MemoryStore):
    """A store that can be away for the lease."""

    away = False

    async def renew(self, tenure: Tenure, lease_s: float) -> None:
        if self.away:
            raise Refused("the store is away", retry_after_s=1.0, reason="STORE_AWAY")
        await super().renew(tenure, lease_s)


@dataclass
class Rival:
    """One scheduler: its post, its keeper, and what it was seen to be."""

    post: Post
    keeper: Keeper
    roles: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Ear:
    """A stream."""

    beats: int = 0
    closed: int = 0

    def beat(self) -> None:
        self.beats += 1

    def close(self) -> None:
        self.closed += 1


def _rival(store: MemoryStore, clock: SteppedClock, address: str) -> Rival:
    post = Post(clock, address=address)
    open_cell = partial(
        Cell.open,
        store,
        cell="test",
        owner=f"host|{address}",
        clock=clock,
        ids=CountingIds(),
        policy=policy_named("dualpath"),
        limits=PolicyLimits(1000, 5000),
        bounds=ServiceBounds(),
        store_lease_s=LEASE_S,
    )

    async def changed() -> None:
        rival.roles.append("active" if post.is_active else "standby")

    rival = Rival(post, Keeper(post, open_cell, clock, store_lease_s=LEASE_S, beat_s=1.0, changed=changed))
    return rival


@asynccontextmanager
async def _kept(rival: Rival) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(rival.keeper.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _settle() -> None:
    for _ in range(YIELDS):
        await asyncio.sleep(0)


async def test_the_second_scheduler_stands_by_and_names_the_first() -> None:
    clock = SteppedClock()
    store = MemoryStore(clock)
    first, second = (_rival(store, clock, address) for address in ("a:1", "b:2"))
    async with _kept(first):
        await _settle()
        async with _kept(second):
            await clock.advance(10 * LEASE_S)

            assert (first.roles, second.roles) == (["active"], ["standby"])
            with pytest.raises(Standby, match="scheduler b:2 stands by, the active one is a:1"):
                _ = second.post.cell


async def test_a_lease_that_is_given_back_is_taken_at_the_next_try() -> None:
    clock = SteppedClock()
    store = MemoryStore(clock)
    first, second = (_rival(store, clock, address) for address in ("a:1", "b:2"))
    async with _kept(first) as leading:
        await _settle()
        async with _kept(second):
            await clock.advance(LEASE_S)
            leading.cancel()
            await asyncio.wait([leading])
            await clock.advance(LEASE_S / 2)

            assert not first.post.is_active
            assert second.roles == ["standby", "active"]


async def test_who_cannot_renew_answers_nobody_once_the_lease_may_be_over() -> None:
    clock = SteppedClock()
    store = AwayStore(clock)
    first = _rival(store, clock, "a:1")
    ear = Ear()
    async with _kept(first):
        await clock.advance(LEASE_S)
        first.post.enter(ear)
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = asyncio.create_task(first.post.within(asked))
        store.away = True
        await clock.advance(LEASE_S / 2)
        led = first.post.is_active
        beats = ear.beats
        await clock.advance(LEASE_S)

        assert led
        assert beats == 1  # one each second while it leads
        assert ear.closed == 1
        with pytest.raises(Standby):
            await answer
        assert first.roles[:2] == ["active", "standby"]


async def test_a_scheduler_that_slept_past_its_lease_does_not_answer_before_it_notices() -> None:
    clock = SteppedClock()
    store = MemoryStore(clock)
    first = _rival(store, clock, "a:1")
    async with _kept(first):
        await _settle()
        cell = first.post.cell
        clock.now_s += 2 * LEASE_S  # as after SIGCONT: time has passed, nothing has run

        assert not first.post.is_active
        with pytest.raises(Standby):
            _ = first.post.cell
        assert first.post.leads(cell)  # until the keeper sees it; answers need more than that


async def test_a_deposed_scheduler_closes_its_streams_and_stands_by() -> None:
    clock = SteppedClock()
    store = MemoryStore(clock)
    first = _rival(store, clock, "a:1")
    ear = Ear()
    async with _kept(first):
        await _settle()
        first.post.enter(ear)
        clock.now_s += 2 * LEASE_S
        await store.acquire("host|b:2", 100.0)
        await clock.advance(LEASE_S)

        assert ear.closed == 1
        assert first.roles == ["active", "standby", "standby"]  # deposed; then it knows who leads
        assert first.post.active_address == "b:2"
