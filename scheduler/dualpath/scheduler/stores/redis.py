"""The truth about a cell in Redis. Each call is one run of guarded.lua: applied whole, and only for the owner."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources

from redis.exceptions import ResponseError

from dualpath.model.errors import Broken, OutcomeUnknown, Rejected
from dualpath.model.ids import BlockKey, TurnId
from dualpath.scheduler.lifecycle.changes import ChangeSet, StoredCell
from dualpath.scheduler.ports import Leased, Tenure
from dualpath.scheduler.stores.bounds import StoreBounds, check_bounds
from dualpath.scheduler.stores.redis_checks import check_server
from dualpath.scheduler.stores.redis_connection import Command, RedisConnection, is_missing_script
from dualpath.scheduler.stores.redis_keys import (
    Argument,
    CellKeys,
    Operations,
    decode_context,
    encode,
    pairs,
)

SCRIPT = resources.files(__package__).joinpath("guarded.lua").read_text(encoding="utf-8")
SCRIPT_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()  # how Redis names a loaded script

PAGE_ITEMS_MIN = 16
PAGE_ITEMS_MAX = 4096


@dataclass(frozen=True, slots=True)
class RedisTiming:
    """How long the store waits, and for whom."""

    connect_timeout_s: float = 2.0
    reply_timeout_s: float = 5.0  # a silent server is given up after this
    retry_after_s: float = 0.5  # what a refused caller is told
    replicas_min: int = 0  # `apply` returns only after so many replicas have it (WAIT)
    replica_wait_s: float = 1.0
    page_bytes: int = 4 * 1024 * 1024  # `load` aims at replies of this size


@dataclass(frozen=True, slots=True)
class _Write:
    """A write whose outcome is not known; asked again, it goes under its old number and cannot count twice."""

    number: int
    keys: list[str]
    arguments: list[Argument]


class RedisStore:
    """A TurnStore for one cell. One per process: it numbers its writes."""

    def __init__(self, connection: RedisConnection, cell: str, *, bounds: StoreBounds, timing: RedisTiming) -> None:
        """Use `open`, which checks the server first."""
        self.warnings: tuple[str, ...] = ()
        self._connection = connection
        self._keys = CellKeys(cell)
        self._bounds = bounds
        self._timing = timing
        self._order = asyncio.Lock()  # numbers must reach the server in their order
        self._token: str | None = None  # the tenure that _number belongs to
        self._number = 0
        self._known = 0  # the last number that the server said it has; below it, it has lost writes
        self._unsettled: _Write | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        cell: str,
        bounds: StoreBounds | None = None,
        timing: RedisTiming | None = None,
        require_durable: bool = True,
    ) -> "RedisStore":
        """Connect and check the server (see `check_server`); what it would lose stands in `warnings`.

        url     redis://, rediss:// or unix://, as redis-py reads them, or redis+sentinel:// (see redis_address.py)
        raises  Rejected if URL, cell name or server will not do, Refused if the server is away
        """
        timing = timing or RedisTiming()
        connection = RedisConnection(
            url,
            connect_timeout_s=timing.connect_timeout_s,
            reply_timeout_s=timing.reply_timeout_s,
            retry_after_s=timing.retry_after_s,
        )
        store = cls(connection, cell, bounds=bounds or StoreBounds(), timing=timing)
        try:
            store.warnings = await check_server(connection, require_durable=require_durable)
        except BaseException:
            await connection.close()
            raise
        return store

    async def acquire(self, owner: str, lease_s: float) -> Tenure:
        """Become the writer; an owner of the same name may come back at once, its older tenure is deposed."""
        unique = uuid.uuid4().hex
        async with self._order:
            await self._check_replicas()
            reply = await self._ask("acquire", "", owner, unique, _to_ms(lease_s))
            match reply:
                case [int(epoch)]:
                    tenure = Tenure(epoch, f"{epoch}:{unique}")
                    self._token, self._number, self._known, self._unsettled = tenure.token, 0, 0, None
                    return tenure
                case [0, int(left_ms), bytes(holder)]:
                    # No expiry (-1) is none of our doing; an operator may have set it.
                    left_s = left_ms / 1000 if left_ms >= 0 else self._timing.retry_after_s
                    raise Leased(holder.decode(errors="replace"), retry_after_s=left_s)
                case _:
                    raise Broken(f"acquire answered {reply!r}", reason="STORE_BROKEN")

    async def renew(self, tenure: Tenure, lease_s: float) -> None:
        """A lost answer raises Refused: renewing again is all there is to do."""
        known = self._known if tenure.token == self._token else 0
        await self._ask("renew", tenure.token, _to_ms(lease_s), known)

    async def release(self, tenure: Tenure) -> None:
        await self._ask("release", tenure.token)

    async def apply(self, changes: Sequence[ChangeSet], tenure: Tenure) -> None:
        """Apply change sets in one run of the script.

        After OutcomeUnknown or a cancelled call, the same change sets again are the same write: it counts once, and
        its events are added once, whether or not the first try arrived. Others in their place fence the first try off.
        """
        written = [change_set for change_set in changes if change_set]
        if not written:
            return
        check_bounds(written, self._bounds)
        operations = encode(written, self._keys, events_max=self._bounds.events_max)
        async with self._order:
            await self._write(operations, tenure, change_sets=len(written))

    async def load(self, tenure: Tenure) -> StoredCell:
        """Read the cell in pages, none of which this tenure can change meanwhile."""
        async with self._order:
            try:
                # A write without operations: what an older connection still has under way is too late from here on.
                await self._write(Operations(self._keys), tenure, change_sets=0)
                return await self._load(tenure)
            except OutcomeUnknown as error:
                raise self._connection.refused(f"lost while loading: {error}") from error
            except (ValueError, TypeError) as error:
                raise Broken(f"what Redis holds is none of ours: {error}", reason="STORE_BROKEN") from error

    async def close(self) -> None:
        await self._connection.close()

    # ---- writing

    async def _write(self, operations: Operations, tenure: Tenure, *, change_sets: int) -> None:
        await self._adopt(tenure)
        write = self._number_write(operations, change_sets)
        self._unsettled = write
        command = self._script("write", tenure.token, write.number, self._known, *write.arguments, keys=write.keys)
        await self._run(command, wait=change_sets > 0)
        self._unsettled, self._known = None, write.number

    def _number_write(self, operations: Operations, change_sets: int) -> _Write:
        keys, arguments = operations.keys, [change_sets, *operations.arguments]
        open_write = self._unsettled
        if open_write and open_write.keys == keys and open_write.arguments == arguments:
            return open_write
        self._number += 1
        return _Write(self._number, keys, arguments)

    async def _adopt(self, tenure: Tenure) -> None:
        """Continue the numbers of a tenure that this store did not acquire itself."""
        if tenure.token != self._token:
            last = await self._read(tenure, "GET", self._keys.head[3])
            self._number, self._unsettled = int(last) if isinstance(last, bytes) else 0, None
            self._known = self._number
            self._token = tenure.token

    async def _run(self, command: Command, *, wait: bool = False) -> object:
        """Send one run of the script, with WAIT behind it where replicas must have the write."""
        replicas = self._timing.replicas_min if wait else 0
        tail: list[Command] = [("WAIT", replicas, _to_ms(self._timing.replica_wait_s))] if replicas else []
        reply, *waited = await self._connection.exchange(command, *tail)
        if is_missing_script(reply):  # nothing ran; a restarted or flushed server forgets scripts
            reply, *waited = await self._connection.exchange(("EVAL", SCRIPT, *command[2:]), *tail)
        if isinstance(reply, ResponseError):
            raise self._connection.translate(reply) from reply
        if waited and not (isinstance(waited[0], int) and waited[0] >= replicas):
            await self._connection.look_again()  # a primary of before a failover, which nobody follows any more?
            raise OutcomeUnknown(f"{waited[0]} replicas have the write, wanted {replicas}", reason="NO_REPLICAS")
        return reply

    async def _check_replicas(self) -> None:
        """Refuse a server that not enough replicas follow: a lease taken there would let nobody write, and a primary of
        before a failover would make a second scheduler active. Changes nothing there.
        """
        replicas, wait_s = self._timing.replicas_min, self._timing.replica_wait_s
        if not replicas:
            return
        try:
            (found,) = await self._connection.exchange(("WAIT", replicas, _to_ms(wait_s)))
        except OutcomeUnknown as error:
            raise self._connection.refused(f"no answer: {error}") from error
        if not (isinstance(found, int) and found >= replicas):
            await self._connection.look_again()
            follow = found if isinstance(found, int) else 0
            raise self._connection.refused(f"{follow} replicas follow it, wanted {replicas}")

    # ---- asking

    async def _ask(self, verb: str, token: str, *arguments: Argument) -> object:
        """Run a verb that may be asked again without harm: a lost answer is Refused, not unknown."""
        try:
            return await self._run(self._script(verb, token, *arguments))
        except OutcomeUnknown as error:
            raise self._connection.refused(f"no answer: {error}") from error

    async def _read(self, tenure: Tenure, command: str, key: str, *arguments: Argument) -> object:
        head = self._keys.head
        return await self._run(self._script("read", tenure.token, command, *arguments, keys=[*head, key]))

    def _script(self, verb: str, token: str, *arguments: Argument, keys: Sequence[str] | None = None) -> Command:
        keys = keys or self._keys.head
        return ("EVALSHA", SCRIPT_SHA, len(keys), *keys, verb, token, *arguments)

    # ---- loading

    async def _load(self, tenure: Tenure) -> StoredCell:
        keys = self._keys
        turns = await self._read_hash(tenure, keys.turns)
        prompts = await self._read_hash(tenure, keys.prompts)
        records = await self._read_hash(tenure, keys.records)
        idempotency = await self._read_hash(tenure, keys.idempotency)
        applied = await self._read(tenure, "GET", keys.head[4])
        return StoredCell(
            turns={TurnId(name.decode()): record for name, record in sorted(turns.items())},
            prompts={TurnId(name.decode()): prompt for name, prompt in sorted(prompts.items())},
            lines=await self._read_lines(tenure),
            records={name.decode(): int(amount) for name, amount in sorted(records.items())},
            contexts=await self._read_contexts(tenure),
            idempotency={name.decode(): TurnId(turn_id.decode()) for name, turn_id in sorted(idempotency.items())},
            events=await self._read_events(tenure),
            changes_applied=int(applied) if isinstance(applied, bytes) else 0,
        )

    async def _read_lines(self, tenure: Tenure) -> dict[str, tuple[tuple[int, TurnId], ...]]:
        names = sorted(name.decode() for name in _flat(await self._read(tenure, "SMEMBERS", self._keys.lines)))
        lines: dict[str, tuple[tuple[int, TurnId], ...]] = {}
        forget = Operations(self._keys)
        for name in names:
            members = [member async for member in self._read_scores(tenure, self._keys.line(name))]
            if members:
                lines[name] = tuple((arrival, TurnId(member.decode())) for arrival, member in members)
            else:
                forget.add("SREM", self._keys.lines, name)
        if forget.arguments:
            await self._write(forget, tenure, change_sets=0)
        return lines

    async def _read_contexts(self, tenure: Tenure) -> dict[BlockKey, tuple[BlockKey, int]]:
        values = await self._read_hash(tenure, self._keys.contexts)
        order = [key async for _, key in self._read_scores(tenure, self._keys.context_order)]
        if len(order) != len(values) or not values.keys() >= set(order):
            raise Broken(f"{len(values)} contexts, {len(order)} in their order, wanted the same", reason="STORE_BROKEN")
        return {BlockKey(key): decode_context(values[key]) for key in order}

    async def _read_events(self, tenure: Tenure) -> tuple[bytes, ...]:
        """The newest events_max, oldest first. Read backwards, since the stream may hold a few more."""
        events: list[bytes] = []
        start, items = b"+", PAGE_ITEMS_MIN
        while len(events) < self._bounds.events_max:
            wanted = min(items, self._bounds.events_max - len(events))
            page = await self._read(tenure, "XREVRANGE", self._keys.events, start, "-", "COUNT", wanted)
            if not isinstance(page, list) or not page:
                break
            payloads = [entry[1][1] for entry in page]
            events += payloads
            start = b"(" + page[-1][0]
            items = self._next_items(items, payloads)
        return tuple(reversed(events))

    async def _read_hash(self, tenure: Tenure, key: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor, items = b"0", PAGE_ITEMS_MIN
        while True:
            reply = await self._read(tenure, "HSCAN", key, cursor, "COUNT", items)
            if not isinstance(reply, list):
                raise TypeError(f"HSCAN answered {type(reply).__name__}")
            cursor, page = reply[0], _flat(reply[1])
            found.update(pairs(page))
            items = self._next_items(items, page)
            if cursor == b"0":
                return found

    async def _read_scores(self, tenure: Tenure, key: str) -> AsyncIterator[tuple[int, bytes]]:
        start, items = 0, PAGE_ITEMS_MIN
        while page := _flat(await self._read(tenure, "ZRANGE", key, start, start + items - 1, "WITHSCORES")):
            for member, score in pairs(page):
                yield int(float(score)), member
            start += len(page) // 2
            items = self._next_items(items, page)

    def _next_items(self, items: int, page: Sequence[bytes]) -> int:
        """Twice as many next time while that keeps within page_bytes: records may be bytes or megabytes."""
        size = sum(map(len, page))
        wanted = items * 2 if size * 2 <= self._timing.page_bytes else items // 2
        return max(PAGE_ITEMS_MIN, min(wanted, PAGE_ITEMS_MAX))


def _flat(reply: object) -> list[bytes]:
    if not isinstance(reply, list):
        raise TypeError(f"answer is {type(reply).__name__}, wanted a list")
    return reply


def _to_ms(seconds: float) -> int:
    if seconds <= 0:
        raise Rejected(f"a lease or wait of {seconds} s, wanted more than 0", field="lease_s")
    return max(1, round(seconds * 1000))
