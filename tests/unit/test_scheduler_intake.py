"""What intake tells a client, and when: nothing that the next scheduler would not know."""

import asyncio
from dataclasses import replace

from cell_support import CountingIds, FakeGroup, ManualClock, committed, running_cell, submission
from dualpath.model.ids import BlockKey, GroupId
from dualpath.model.turn import Role, TurnState
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.stores.memory import MemoryStore

KEYS = (BlockKey(b"\1" * 32), BlockKey(b"\2" * 32))


class SmallBlocks(FakeGroup):
    """A group with blocks of four tokens."""

    def hello(self) -> GroupHello:
        return replace(super().hello(), block_tokens=4)


class SlowStore(MemoryStore):
    """Each write waits until a test lets it through."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.gate = asyncio.Semaphore(0)

    async def apply(self, *args: object, **named: object) -> None:
        await self.gate.acquire()
        await super().apply(*args, **named)  # type: ignore[arg-type]


async def _breathe() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_an_end_is_told_to_whoever_asks_again_only_after_its_write() -> None:
    clock = ManualClock()
    store, heard = SlowStore(clock), list[TurnState]()

    def durable(entry: TurnEntry) -> None:
        heard.append(entry.state)

    async with running_cell(store=store, clock=clock) as bench:
        bench.cell.intake.accept(submission("a"), durable)
        await _breathe()
        bench.cell.settle.cancel(bench.cell.find(idempotency_key="a").turn.turn_id)
        store.gate.release()  # accepted, as it was before the cancel
        await _breathe()
        after_first = list(heard)
        store.gate.release()
        await _breathe()

    assert [after_first, heard] == [[], [TurnState.CANCELLED]]


async def test_a_known_context_has_its_length_before_any_group_is_back() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        pe, de = (bench.join(g) for g in (SmallBlocks("p0", Role.PREFILL), SmallBlocks("d0", Role.DECODE)))
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        bench.cell.settle.commit(GroupId("d0"), Core.key(entry), committed(), KEYS)
        await bench.settled()

    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        entry = await bench.cell.intake.submit(submission("b", context=(KEYS[-1], 8)))

    assert [entry.turn.hit_tokens, entry.turn.hit_keys] == [8, KEYS]
