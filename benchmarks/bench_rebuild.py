"""How long a scheduler needs from asking for the lease to leading a cell of many open turns, all of it in Redis.

The turns wait in the FIFO; each has a prompt of --prompt-tokens and continues a context of --context-blocks blocks. The
server is the embedded one (AOF, each write synced) in --folder. A reading of the same bytes by a plain client in the
same run is the limit to compare with. --out gets the figures.
"""

import argparse
import asyncio
import gc
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from redis.asyncio import Redis

from dualpath.model.ids import ROOT_KEY, BlockKey, SessionId, TurnId
from dualpath.model.turn import Turn, TurnState
from dualpath.scheduler.app import CLOCK, RandomIds, collect_seldom
from dualpath.scheduler.lifecycle.changes import ChangeSet, Enqueue, PutContext, PutIdempotency, PutPrompt, PutTurn
from dualpath.scheduler.lifecycle.records import TurnEntry, encode_prompt
from dualpath.scheduler.policy.registry import policy_named
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.redis import RedisStore

BATCH = 256
BLOCK_TOKENS = 64
CELL = "bench"


@dataclass(frozen=True, slots=True)
class Figures:
    turns: int
    redis_mib: float
    takeover_s: float  # from asking for the lease to a cell that may decide
    takeover_cpu_s: float  # of the scheduler
    plain_read_s: float  # the same keys by a plain client, nothing decoded
    ratio_to_plain_read: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=50_000)
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--context-blocks", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="data folder; default a temporary one")
    parser.add_argument("--out", type=Path, help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        figures = asyncio.run(measure(folder, options.turns, options.prompt_tokens, options.context_blocks))
    print(
        f"{figures.turns:,} open turns, {figures.redis_mib:.0f} MiB in Redis: leading after {figures.takeover_s:.2f} s"
        f" ({figures.takeover_cpu_s:.2f} s CPU); a plain client reads the same in {figures.plain_read_s:.2f} s"
        f" (ratio {figures.ratio_to_plain_read:.1f})"
    )
    if options.out:
        options.out.write_text(json.dumps(asdict(figures), indent=2) + "\n")


async def measure(folder: Path, turns: int, prompt_tokens: int, context_blocks: int) -> Figures:
    async with EmbeddedRedis(folder) as server:
        await fill(server.url, turns, prompt_tokens, context_blocks)
        plain_s, mib = await read_plainly(server.url)
        gc.collect()
        collect_seldom()
        store = await RedisStore.open(server.url, cell=CELL)
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        cell = await Cell.open(
            store,
            cell=CELL,
            owner="bench",
            clock=CLOCK,
            ids=RandomIds(),
            policy=policy_named("dualpath"),
            limits=PolicyLimits(1_000, 100_000),
            bounds=ServiceBounds(),
        )
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
        if cell.core.ledger.open_count != turns:
            raise SystemExit(f"{cell.core.ledger.open_count} turns were rebuilt, wanted {turns}")
        await store.close()
    return Figures(
        turns, round(mib, 1), round(took_s, 3), round(cpu_s, 3), round(plain_s, 3), round(took_s / plain_s, 2)
    )


async def fill(url: str, turns: int, prompt_tokens: int, context_blocks: int) -> None:
    store = await RedisStore.open(url, cell=CELL)
    tenure = await store.acquire("fill", 3600.0)
    keys = tuple(BlockKey(number.to_bytes(32, "big")) for number in range(1, context_blocks + 1))
    parents = (ROOT_KEY, *keys)
    contexts = [
        PutContext(key, parent, BLOCK_TOKENS * place)
        for place, (key, parent) in enumerate(zip(keys, parents, strict=False), 1)
    ]
    await store.apply([ChangeSet(tuple(contexts))], tenure)
    for first in range(0, turns, BATCH):
        await store.apply([_accept(n, keys, prompt_tokens) for n in range(first, min(turns, first + BATCH))], tenure)
    await store.release(tenure)
    await store.close()


def _accept(number: int, keys: tuple[BlockKey, ...], prompt_tokens: int) -> ChangeSet:
    turn = Turn(
        turn_id=TurnId(f"{number:032x}"),
        session_id=SessionId(f"session-{number}"),
        arrival=number + 1,
        tokens=tuple(range(number, number + prompt_tokens)),
        max_new_tokens=100,
        context_key=keys[-1] if keys else ROOT_KEY,
        hit_tokens=len(keys) * BLOCK_TOKENS,
        hit_keys=keys,
        idempotency_key=f"key-{number}",
    )
    entry = TurnEntry(turn, TurnState.PREFILL_FIFO)
    return ChangeSet(
        (
            PutPrompt(turn.turn_id, encode_prompt(turn)),
            PutTurn(turn.turn_id, entry.encode()),
            Enqueue("prefill_fifo", turn.turn_id, turn.arrival),
            PutIdempotency(turn.idempotency_key, turn.turn_id),
        )
    )


async def read_plainly(url: str) -> tuple[float, float]:
    """Seconds and MiB: each key read whole by what its type wants, many commands under way at once."""
    async with Redis.from_url(url) as redis:
        began_s = time.perf_counter()
        size = 0
        keys = [key async for key in redis.scan_iter(count=10_000)]
        for key in keys:
            match await redis.type(key):
                case b"hash":
                    size += sum(len(k) + len(v) for k, v in (await redis.hgetall(key)).items())
                case b"zset":
                    size += sum(len(str(member)) for member in await redis.zrange(key, 0, -1))
                case b"string":
                    size += len(await redis.get(key) or b"")
        return time.perf_counter() - began_s, size / 2**20


if __name__ == "__main__":
    main()
