"""The Redis store against a real server: ownership, all or none, what failures mean to the caller."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import redis_support
import support
from dualpath.model.errors import Broken, OutcomeUnknown, Refused, Rejected, Stale
from dualpath.model.ids import BLOCK_KEY_BYTES, BlockKey, TurnId
from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    DropTurn,
    Enqueue,
    OpenRecord,
    PutContext,
    PutTurn,
)
from dualpath.scheduler.stores.bounds import StoreBounds
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.redis import RedisStore, RedisTiming
from dualpath.scheduler.stores.redis_address import hide_password

LEASE_S = 60.0
SHORT = RedisTiming(connect_timeout_s=0.5, reply_timeout_s=0.2)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A server that the test may hurt."""
    with redis_support.running_redis(tmp_path / "redis") as server:
        yield server


def put(name: str, record: bytes = b"record") -> ChangeSet:
    return ChangeSet((PutTurn(TurnId(name), record),))


# ---- ownership


async def test_a_deposed_owner_cannot_write_read_or_renew(redis_server: EmbeddedRedis, cell: str) -> None:
    async with (
        redis_support.opened(redis_server.url, cell=cell) as old,
        redis_support.opened(redis_server.url, cell=cell) as new,
        redis_support.admin(redis_server.url) as redis,
    ):
        deposed = await old.acquire("ann", LEASE_S)
        await redis.delete(f"dp:{{{cell}}}:lease")
        tenure = await new.acquire("bob", LEASE_S)

        for call in (old.apply([put("t1")], deposed), old.load(deposed), old.renew(deposed, LEASE_S)):
            with pytest.raises(Stale, match="belongs to epoch 2"):
                await call
        await old.release(deposed)

        assert tenure.epoch == deposed.epoch + 1
        assert (await new.load(tenure)).turns == {}
        assert await redis.get(f"dp:{{{cell}}}:lease") == b"bob"


async def test_a_lease_keeps_others_out_until_it_ends(redis_server: EmbeddedRedis, cell: str) -> None:
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        await store.acquire("ann", 0.1)

        with pytest.raises(Refused, match="belongs to ann") as refused:
            await store.acquire("bob", LEASE_S)
        await asyncio.sleep(refused.value.retry_after_s + 0.01)

        assert (await store.acquire("bob", LEASE_S)).epoch == 2


async def test_an_owner_whose_lease_ended_goes_on_while_nobody_took_over(
    redis_server: EmbeddedRedis, cell: str
) -> None:
    async with (
        redis_support.opened(redis_server.url, cell=cell) as store,
        redis_support.admin(redis_server.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await redis.delete(f"dp:{{{cell}}}:lease")

        await store.apply([put("t1")], tenure)
        await store.renew(tenure, LEASE_S)

        assert await redis.get(f"dp:{{{cell}}}:lease") == b"ann"


async def test_a_token_is_not_guessed_from_the_epoch_or_shown(redis_server: EmbeddedRedis, cell: str) -> None:
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)
        await store.acquire("ann", LEASE_S)

        with pytest.raises(Stale) as stale:
            await store.apply([put("t1")], tenure)

        assert len(tenure.token) == len("1:") + 32
        assert len(str(stale.value)) < 40


# ---- what is written


async def test_a_context_that_is_put_again_keeps_its_place(redis_server: EmbeddedRedis, cell: str) -> None:
    first, second = (BlockKey(bytes([n]) * BLOCK_KEY_BYTES) for n in (2, 1))
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)

        for key in (first, second, first):
            await store.apply([ChangeSet((PutContext(key, first, 64),))], tenure)

        assert list((await store.load(tenure)).contexts) == [first, second]


async def test_a_call_of_many_operations_is_one_write(redis_server: EmbeddedRedis, cell: str) -> None:
    count = 9_000  # more than Lua can unpack
    operations = [Enqueue("prefill_fifo", TurnId(f"t{n}"), n) for n in range(count)]
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)

        await store.apply([ChangeSet(tuple(operations))], tenure)
        stored = await store.load(tenure)

        assert [arrival for arrival, _ in stored.lines["prefill_fifo"]] == list(range(count))
        assert stored.changes_applied == 1


async def test_large_records_load_whole(redis_server: EmbeddedRedis, cell: str) -> None:
    record = bytes(1024 * 1024)
    async with redis_support.opened(redis_server.url, cell=cell, timing=RedisTiming(page_bytes=1024)) as store:
        tenure = await store.acquire("ann", LEASE_S)

        await store.apply([put(f"t{n}", record) for n in range(20)], tenure)

        assert [len(found) for found in (await store.load(tenure)).turns.values()] == [len(record)] * 20


async def test_a_call_over_its_bounds_writes_nothing(redis_server: EmbeddedRedis, cell: str) -> None:
    store = await RedisStore.open(
        redis_server.url, cell=cell, bounds=StoreBounds(operations_per_call_max=2, call_bytes_max=100)
    )
    tenure = await store.acquire("ann", LEASE_S)

    with pytest.raises(Rejected, match="3 operations, operations_per_call_max 2"):
        await store.apply([put("t1"), put("t2"), put("t3")], tenure)
    with pytest.raises(Rejected, match="101 bytes, call_bytes_max 100"):
        await store.apply([put("t1", bytes(101))], tenure)

    assert (await store.load(tenure)).turns == {}
    await store.close()


async def test_what_is_none_of_ours_is_broken(redis_server: EmbeddedRedis, cell: str) -> None:
    async with (
        redis_support.opened(redis_server.url, cell=cell) as store,
        redis_support.admin(redis_server.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await redis.hset(f"dp:{{{cell}}}:records", "t1:1:tokens:n0/g0", "many")

        with pytest.raises(Broken, match="none of ours"):
            await store.load(tenure)


async def test_scripts_that_the_server_forgot_are_sent_again(own_redis: EmbeddedRedis, cell: str) -> None:
    async with (
        redis_support.opened(own_redis.url, cell=cell) as store,
        redis_support.admin(own_redis.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await redis.script_flush()

        await store.apply([put("t1")], tenure)

        assert list((await store.load(tenure)).turns) == ["t1"]


@pytest.mark.parametrize("cell_name", ["", "a}b", "a b", "x" * 65])
async def test_a_cell_name_that_moves_the_hash_tag_is_rejected(redis_server: EmbeddedRedis, cell_name: str) -> None:
    with pytest.raises(Rejected, match="cell is"):
        await RedisStore.open(redis_server.url, cell=cell_name)


# ---- what a server must be


async def test_a_server_that_evicts_is_rejected(own_redis: EmbeddedRedis, cell: str) -> None:
    async with redis_support.admin(own_redis.url) as redis:
        await redis.config_set("maxmemory", "100mb")
        await redis.config_set("maxmemory-policy", "allkeys-lru")

    with pytest.raises(Rejected, match="maxmemory-policy is allkeys-lru, wanted noeviction"):
        await RedisStore.open(own_redis.url, cell=cell, require_durable=False)


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("appendonly", "no", "appendonly is no, wanted yes"),
        ("appendfsync", "everysec", "appendfsync is everysec, wanted always"),
    ],
)
async def test_a_server_that_forgets_is_rejected_or_warned_about(
    own_redis: EmbeddedRedis, cell: str, name: str, found: str, message: str
) -> None:
    async with redis_support.admin(own_redis.url) as redis:
        await redis.config_set(name, found)

    with pytest.raises(Rejected, match=message):
        await RedisStore.open(own_redis.url, cell=cell)
    async with redis_support.opened(own_redis.url, cell=cell, require_durable=False) as store:
        assert [message in warning for warning in store.warnings] == [True]


async def test_a_server_that_is_away_is_named_without_its_password(free_port: int, cell: str) -> None:
    with pytest.raises(Refused) as refused:
        await RedisStore.open(f"redis://user:secret@127.0.0.1:{free_port}/0", cell=cell)

    assert f"redis://user:***@127.0.0.1:{free_port}/0" in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_wrong_password_is_rejected(own_redis: EmbeddedRedis, cell: str) -> None:
    async with redis_support.admin(own_redis.url) as redis:
        await redis.config_set("requirepass", "right")

    with pytest.raises(Rejected, match="does not let us in"):
        await RedisStore.open(own_redis.url + "?password=wrong", cell=cell)


@pytest.mark.parametrize("url", ["http://host/", "redis://host:port/", "nothing"])
async def test_a_url_of_another_kind_is_rejected(url: str, cell: str) -> None:
    with pytest.raises(Rejected) as rejected:
        await RedisStore.open(url, cell=cell)

    assert rejected.value.field == "redis_url"


async def test_a_url_that_cannot_be_read_does_not_show_its_password(cell: str) -> None:
    with pytest.raises(Rejected) as rejected:
        await RedisStore.open("redis://:sec/ret@host:6379/0", cell=cell)

    assert "sec" not in str(rejected.value) and "ret@" not in str(rejected.value)


def test_passwords_are_hidden_wherever_a_url_has_them() -> None:
    assert hide_password("unix:///run/r.sock?password=secret&db=1") == "unix:///run/r.sock?password=***&db=1"
    assert hide_password("rediss://:secret@host:6379/0") == "rediss://:***@host:6379/0"


# ---- failures


async def test_a_full_server_refuses_and_writes_nothing(own_redis: EmbeddedRedis, cell: str) -> None:
    async with (
        redis_support.opened(own_redis.url, cell=cell) as store,
        redis_support.admin(own_redis.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await redis.config_set("maxmemory", "1")

        with pytest.raises(Refused, match="Redis is full") as refused:
            await store.apply([put("t1"), put("t2")], tenure)
        await redis.config_set("maxmemory", "0")

        assert refused.value.reason == "STORE_OOM"
        assert (await store.load(tenure)).turns == {}


async def test_a_replica_refuses_writes(own_redis: EmbeddedRedis, cell: str, free_port: int) -> None:
    async with (
        redis_support.opened(own_redis.url, cell=cell) as store,
        redis_support.admin(own_redis.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await redis.replicaof("127.0.0.1", str(free_port))

        with pytest.raises(Refused, match="replica"):
            await store.apply([put("t1")], tenure)


async def test_too_few_replicas_leave_the_outcome_unknown(redis_server: EmbeddedRedis, cell: str) -> None:
    timing = RedisTiming(replicas_min=1, replica_wait_s=0.02)
    async with (
        redis_support.opened(redis_server.url, cell=cell) as alone,
        redis_support.opened(redis_server.url, cell=cell, timing=timing) as store,
    ):
        with pytest.raises(Refused, match="0 replicas follow it, wanted 1"):
            await store.acquire("ann", LEASE_S)
        tenure = await alone.acquire("ann", LEASE_S)

        with pytest.raises(OutcomeUnknown, match="0 replicas have the write, wanted 1"):
            await store.apply([put("t1")], tenure)


async def test_a_server_that_left_before_sending_is_refused(own_redis: EmbeddedRedis, cell: str) -> None:
    async with redis_support.opened(own_redis.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)
        await own_redis.stop()
        await asyncio.sleep(0)  # the end of the connection must reach the loop

        with pytest.raises(Refused, match="cannot connect"):
            await store.apply([put("t1")], tenure)


async def test_a_silent_server_leaves_the_outcome_unknown_and_the_same_write_counts_once(
    own_redis: EmbeddedRedis, cell: str
) -> None:
    changes = [put("t1") + ChangeSet((AddEvent(b"accepted"),))]
    async with redis_support.opened(own_redis.url, cell=cell, timing=SHORT) as store:
        tenure = await store.acquire("ann", LEASE_S)
        with stopped(own_redis):
            with pytest.raises(OutcomeUnknown, match=r"did not answer within 0\.2 s"):
                await store.apply(changes, tenure)
            with pytest.raises(Refused):
                await store.renew(tenure, LEASE_S)

        await store.apply(changes, tenure)
        stored = await store.load(tenure)

        assert (stored.events, stored.changes_applied) == ((b"accepted",), 1)


async def test_a_write_that_arrives_after_later_ones_is_not_taken(own_redis: EmbeddedRedis, cell: str) -> None:
    async with (
        late_proxy(own_redis) as proxy,
        redis_support.opened(proxy.url, cell=cell, timing=SHORT) as store,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        proxy.hold = True
        with pytest.raises(OutcomeUnknown):
            await store.apply([put("t1", b"old")], tenure)
        proxy.hold = False

        await store.apply([put("t1", b"new")], tenure)
        assert b"LATE" in await proxy.deliver()

        assert (await store.load(tenure)).turns == {TurnId("t1"): b"new"}


async def test_a_server_that_fell_back_behind_its_answers_has_no_owner_any_more(
    redis_server: EmbeddedRedis, cell: str
) -> None:
    async with (
        redis_support.opened(redis_server.url, cell=cell) as store,
        redis_support.admin(redis_server.url) as redis,
    ):
        tenure = await store.acquire("ann", LEASE_S)
        await store.apply([put("t1")], tenure)
        writes_key = f"dp:{{{cell}}}:writes"
        earlier = await redis.get(writes_key)
        await store.apply([put("t2")], tenure)
        await redis.set(writes_key, earlier or b"")

        for call in (store.renew(tenure, LEASE_S), store.apply([put("t3")], tenure)):
            with pytest.raises(Stale, match="lost write 2, it is at write 1"):
                await call

        after = await store.acquire("ann", LEASE_S)
        await store.apply([put("t3")], after)


async def test_cancelled_calls_leave_no_reply_to_others(redis_server: EmbeddedRedis, cell: str) -> None:
    chance = random.Random(7)
    seen = set()
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)
        for number in range(300):
            call = asyncio.create_task(store.apply([put("t1", b"%d" % number)], tenure))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            call.cancel()
            seen.add((await asyncio.gather(call, return_exceptions=True))[0].__class__)

            await store.apply([ChangeSet((OpenRecord("echo", number), DropTurn(TurnId("t1"))))], tenure)
            stored = await store.load(tenure) if number % 10 == 0 else None

            assert stored is None or (stored.records, stored.turns) == ({"echo": number}, {})

        assert asyncio.CancelledError in seen
        assert (await store.load(tenure)).records == {"echo": 299}


async def test_concurrent_calls_are_applied_in_their_order(redis_server: EmbeddedRedis, cell: str) -> None:
    async with redis_support.opened(redis_server.url, cell=cell) as store:
        tenure = await store.acquire("ann", LEASE_S)

        async with asyncio.TaskGroup() as calls:
            for number in range(50):
                calls.create_task(store.apply([ChangeSet((AddEvent(b"%d" % number),))], tenure))

        assert (await store.load(tenure)).events == tuple(b"%d" % number for number in range(50))


async def test_a_closed_store_takes_nothing(redis_server: EmbeddedRedis, cell: str) -> None:
    store = await RedisStore.open(redis_server.url, cell=cell)
    tenure = await store.acquire("ann", LEASE_S)
    await store.close()
    await store.close()

    with pytest.raises(Stale, match="is closed"):
        await store.apply([put("t1")], tenure)


# ---- helpers


class stopped:
    """The server is there and silent, as behind a dead switch."""

    def __init__(self, server: EmbeddedRedis) -> None:
        assert server.pid is not None
        self.pid = server.pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


class LateProxy:
    """Passes bytes on, or keeps them while `hold` is on, to deliver them later than what was sent after them."""

    def __init__(self, server: EmbeddedRedis, port: int) -> None:
        self.path = server.url.removeprefix("unix://")
        self.url = f"redis://127.0.0.1:{port}"
        self.hold = False
        self.held = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self.path)
        back = asyncio.create_task(self.copy(from_server, writer))
        while data := await reader.read(65536):
            if self.hold:
                self.held += data
            else:
                to_server.write(data)
        to_server.close()
        await back
        writer.close()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def deliver(self) -> bytes:
        """Send what was kept; return the answer."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(self.held)
        answer = await reader.readline()
        writer.close()
        return answer


@asynccontextmanager
async def late_proxy(server: EmbeddedRedis) -> AsyncIterator[LateProxy]:
    port = support.find_free_port()
    proxy = LateProxy(server, port)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", port) as listener:
        yield proxy
        listener.close()
