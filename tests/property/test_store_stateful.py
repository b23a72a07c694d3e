"""The store in memory and the one in Redis hold the same after any steps, so the simulator runs on the truth."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import redis_support
from dualpath.model.errors import DualPathError, Refused
from dualpath.model.ids import BLOCK_KEY_BYTES, BlockKey, TurnId
from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    CloseRecord,
    Dequeue,
    DropContext,
    DropIdempotency,
    DropTurn,
    Enqueue,
    OpenRecord,
    Operation,
    PutContext,
    PutIdempotency,
    PutTurn,
)
from dualpath.scheduler.ports import Tenure, TurnStore
from dualpath.scheduler.stores.bounds import ARRIVAL_MAX, StoreBounds
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.scheduler.stores.redis import RedisStore

Answer = TypeVar("Answer")

LEASE_S = 600.0  # longer than any example: leases end by a rule, not by the clock
EVENTS_MAX = 3
EXAMPLES, STEPS = 40, 25  # about five seconds; each step loads the whole cell from both

# Few names, so that steps meet each other.
turn_ids = st.sampled_from([TurnId("t1"), TurnId("t2"), TurnId("tü")])
lines = st.sampled_from(["prefill_fifo", "decode_queue", "group_queue:g 1"])
names = st.sampled_from(["a", "b:1", "ü"])
block_keys = st.sampled_from([BlockKey(bytes([n]) * BLOCK_KEY_BYTES) for n in (0, 10, 255)])
amounts = st.integers(0, 2**63)

operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(PutTurn, turn_ids, st.binary(max_size=80)),
    st.builds(DropTurn, turn_ids),
    st.builds(Enqueue, lines, turn_ids, st.integers(0, 5) | st.integers(0, ARRIVAL_MAX)),
    st.builds(Dequeue, lines, turn_ids),
    st.builds(OpenRecord, names, amounts),
    st.builds(CloseRecord, names),
    st.builds(PutContext, block_keys, block_keys, amounts),
    st.builds(DropContext, block_keys),
    st.builds(PutIdempotency, names, turn_ids),
    st.builds(DropIdempotency, names),
    st.builds(AddEvent, st.binary(max_size=8)),
)
change_sets = st.builds(ChangeSet, st.lists(operations, max_size=6).map(tuple))
owners = st.sampled_from(["ann", "bob"])


class StillClock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class TwoStores(RuleBasedStateMachine):
    """Two owners fight for one cell; each step is taken in both stores and must end alike."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.cell = redis_support.fresh_cell()
        self.clock = StillClock()
        bounds = StoreBounds(events_max=EVENTS_MAX)
        self.runner = asyncio.Runner()
        self.memory = MemoryStore(self.clock, bounds=bounds)
        # One store per owner, as in two processes.
        self.redis: dict[str, RedisStore] = {
            owner: self.runner.run(RedisStore.open(self.url, cell=self.cell, bounds=bounds, require_durable=False))
            for owner in ("ann", "bob")
        }
        self.tenures: dict[str, tuple[Tenure, Tenure]] = {}
        self.newest: str | None = None

    @initialize(owner=owners)
    def the_first_owner_comes(self, owner: str) -> None:
        self.acquire(owner)

    @rule(owner=owners)
    def acquire(self, owner: str) -> None:
        in_memory = self.runner.run(_outcome(self.memory.acquire(owner, LEASE_S)))
        in_redis = self.runner.run(_outcome(self.redis[owner].acquire(owner, LEASE_S)))
        if isinstance(in_memory, Tenure) and isinstance(in_redis, Tenure):
            assert in_memory.epoch == in_redis.epoch
            self.tenures[owner] = (in_memory, in_redis)
            self.newest = owner
        else:
            assert isinstance(in_memory, Refused) and isinstance(in_redis, Refused)
            assert 0 < in_redis.retry_after_s <= in_memory.retry_after_s <= LEASE_S

    @rule(owner=owners, changes=st.lists(change_sets, max_size=3))
    def apply(self, owner: str, changes: list[ChangeSet]) -> None:
        self.step(owner, lambda store, tenure: store.apply(changes, tenure))

    @rule(owner=owners)
    def renew(self, owner: str) -> None:
        self.step(owner, lambda store, tenure: store.renew(tenure, LEASE_S))

    @rule(owner=owners)
    def release(self, owner: str) -> None:
        self.step(owner, lambda store, tenure: store.release(tenure))

    @rule()
    def the_lease_passes(self) -> None:
        self.clock.now_s += LEASE_S
        self.runner.run(self.delete_lease())

    @rule(owner=owners)
    def the_connection_is_replaced(self, owner: str) -> None:
        self.runner.run(self.redis[owner].close())
        self.redis[owner] = self.runner.run(
            RedisStore.open(self.url, cell=self.cell, bounds=StoreBounds(events_max=EVENTS_MAX), require_durable=False)
        )

    @invariant()
    def both_hold_the_same(self) -> None:
        if self.newest is not None:
            self.step(self.newest, lambda store, tenure: store.load(tenure))

    def teardown(self) -> None:
        for store in self.redis.values():
            self.runner.run(store.close())
        self.runner.close()

    def step(self, owner: str, call: Callable[[TurnStore, Tenure], Awaitable[object]]) -> None:
        """Take one step in both stores; they must answer the same, or raise errors of the same class."""
        if owner not in self.tenures:
            return
        in_memory, in_redis = self.tenures[owner]
        stored = self.runner.run(_outcome(call(self.memory, in_memory)))
        found = self.runner.run(_outcome(call(self.redis[owner], in_redis)))
        if isinstance(stored, DualPathError):
            assert type(found) is type(stored), f"memory {stored!r}, redis {found!r}"
        else:
            assert found == stored

    async def delete_lease(self) -> None:
        async with redis_support.admin(self.url) as redis:
            await redis.delete(f"dp:{{{self.cell}}}:lease")


async def _outcome(call: Awaitable[Answer]) -> Answer | DualPathError:
    try:
        return await call
    except DualPathError as error:
        return error


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without a file: what is asked here is whether the two agree, not whether a disk holds."""
    with redis_support.running_redis(tmp_path_factory.mktemp("redis"), options=("--appendonly", "no")) as server:
        yield server.url


def test_memory_and_redis_agree_after_any_steps(redis_url: str) -> None:
    class OnThisServer(TwoStores):
        url = redis_url

    run_state_machine_as_test(OnThisServer, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS))


def test_the_two_stores_are_turn_stores() -> None:
    stores: list[type[TurnStore]] = [MemoryStore, RedisStore]

    assert len(stores) == 2
