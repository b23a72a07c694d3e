"""How many change sets per second the Redis store takes, by how many travel in one call (group commit).

A change set here is what accepting a turn writes: its record, its place in the FIFO, its idempotency key, an event. The
server is the embedded one with `appendfsync always`, on the disk of --folder; --json writes the figures for a machine.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dualpath.model.ids import TurnId
from dualpath.scheduler.lifecycle.changes import AddEvent, ChangeSet, Enqueue, PutIdempotency, PutTurn
from dualpath.scheduler.ports import Tenure
from dualpath.scheduler.stores.embedded import EmbeddedRedis
from dualpath.scheduler.stores.redis import RedisStore

BATCHES = (1, 16, 64, 256)
RECORD_BYTES = 200
EVENT_BYTES = 100


@dataclass(frozen=True, slots=True)
class Figure:
    batch: int
    change_sets_per_s: float
    call_p50_ms: float
    call_p99_ms: float
    client_cpu_us_per_change_set: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per batch size")
    parser.add_argument("--folder", type=Path, help="data folder; default a temporary one")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = asyncio.run(measure_all(options.folder or Path(temporary), options.seconds))
    print_table(figures)
    if options.json:
        report = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "figures": [asdict(f) for f in figures]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


async def measure_all(folder: Path, seconds: float) -> list[Figure]:
    async with EmbeddedRedis(folder) as server:
        store = await RedisStore.open(server.url, cell="bench")
        try:
            tenure = await store.acquire("bench", 3600.0)
            return [await measure(store, tenure, batch, seconds) for batch in BATCHES]
        finally:
            await store.close()


async def measure(store: RedisStore, tenure: Tenure, batch: int, seconds: float) -> Figure:
    calls_s: list[float] = []
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < seconds:
        changes = [accept(len(calls_s) * batch + number) for number in range(batch)]
        call_began_s = time.perf_counter()
        await store.apply(changes, tenure)
        calls_s.append(time.perf_counter() - call_began_s)
    count = len(calls_s) * batch
    return Figure(
        batch=batch,
        change_sets_per_s=round(count / (time.perf_counter() - began_s), 1),
        call_p50_ms=percentile_ms(calls_s, 0.50),
        call_p99_ms=percentile_ms(calls_s, 0.99),
        client_cpu_us_per_change_set=round((time.process_time() - cpu_began_s) / count * 1e6, 1),
    )


def accept(number: int) -> ChangeSet:
    turn_id = TurnId(f"turn-{number:012d}")
    return ChangeSet(
        (
            PutTurn(turn_id, bytes(RECORD_BYTES)),
            Enqueue("prefill_fifo", turn_id, number),
            PutIdempotency(f"tenant:{number:012d}", turn_id),
            AddEvent(bytes(EVENT_BYTES)),
        )
    )


def percentile_ms(values_s: Sequence[float], share: float) -> float:
    ordered = sorted(values_s)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)


def print_table(figures: Sequence[Figure]) -> None:
    print("batch  change sets/s  call p50 ms  call p99 ms  client CPU us/change set")
    for f in figures:
        print(
            f"{f.batch:5}  {f.change_sets_per_s:13,.0f}  {f.call_p50_ms:11.2f}  {f.call_p99_ms:11.2f}"
            f"  {f.client_cpu_us_per_change_set:24.1f}"
        )


if __name__ == "__main__":
    main()
