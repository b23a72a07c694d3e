"""Counts turns anew from the keys in Redis, with a reading of the record format of its own.

record  header length u32 | header JSON | result token ids u32 x k | crc32
"""

import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import orjson
import redis.asyncio as redis

PAGE = 1000
ENDED = ("committed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """What Redis says of a turn."""

    turn_id: str
    key: str
    arrival: int
    attempt: int
    state: str
    end: str
    digest: str
    decisions: tuple[tuple[int, float, str, str], ...]  # attempt, seconds after acceptance, step, choice


@dataclass(frozen=True, slots=True)
class Recount:
    """All turns of a cell, and what does not fit together."""

    turns: Mapping[str, StoredTurn]  # by idempotency key
    states: Mapping[str, int]
    records: int  # open ledger records
    waiting: int
    epoch: int
    problems: tuple[str, ...]


async def recount(client: "redis.Redis", cell: str) -> Recount:
    prefix = f"dp:{{{cell}}}:"
    problems: list[str] = []
    turns: dict[str, StoredTurn] = {}
    async for turn_id, record in client.hscan_iter(prefix + "turns", count=PAGE):
        turn = _turn(turn_id.decode(), record, problems)
        if turn is None:
            continue
        if turn.key in turns:
            problems.append(f"key {turn.key} has the turns {turns[turn.key].turn_id} and {turn.turn_id}")
        turns[turn.key] = turn
    async for key, turn_id in client.hscan_iter(prefix + "idempotency", count=PAGE):
        found = turns.get(key.decode())
        if found is None or found.turn_id != turn_id.decode():
            has = found.turn_id if found else "missing"
            problems.append(f"key {key.decode()} names turn {turn_id.decode()}, its record is {has}")
    events = cast(list[tuple[bytes, dict[bytes, bytes]]], await client.xrange(prefix + "events"))
    ends = Counter(orjson.loads(fields[b"e"])["turn_id"] for _, fields in events if b"e" in fields)
    problems += [f"turn {turn} ended {times} times in the event stream" for turn, times in ends.items() if times > 1]
    lines = [name.decode() for name in cast(set[bytes], await client.smembers(prefix + "lines"))]
    return Recount(
        turns=turns,
        states=Counter(turn.state for turn in turns.values()),
        records=int(await client.hlen(prefix + "records")),
        waiting=sum([int(await client.zcard(f"{prefix}line:{name}")) for name in lines]),
        epoch=int(await client.get(prefix + "epoch") or 0),
        problems=tuple(problems),
    )


def _turn(turn_id: str, record: bytes, problems: list[str]) -> StoredTurn | None:
    body = record[:-4]
    if len(record) < 8 or struct.unpack("<I", record[-4:])[0] != zlib.crc32(body):
        problems.append(f"record of turn {turn_id} fails its checksum")
        return None
    (length,) = struct.unpack_from("<I", body)
    header: dict[str, Any] = orjson.loads(body[4 : 4 + length])
    tokens = body[4 + length :]
    ids = struct.unpack(f"<{len(tokens) // 4}I", tokens)
    end = (header["result"] or {}).get("end_reason", "")
    if (header["state"] in ENDED) != bool(end):
        problems.append(f"turn {turn_id} is {header['state']} with the end {end!r}")
    text = f"{end}:{','.join(map(str, ids))}"
    return StoredTurn(
        turn_id=header["turn_id"],
        key=header["idempotency_key"],
        arrival=header["arrival"],
        attempt=header["attempt"],
        state=header["state"],
        end=end,
        digest=sha256(text.encode()).hexdigest()[:16],
        decisions=tuple((d[0], d[1], d[2], d[3]) for d in header["decisions"]),
    )
