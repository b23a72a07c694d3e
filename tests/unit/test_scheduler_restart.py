"""What waits for a group that has not come back since the scheduler's restart."""

from cell_support import CountingIds, FakeGroup, ManualClock, running_cell, submission
from dualpath.model.turn import Role, TurnState
from dualpath.scheduler.stores.memory import MemoryStore


async def test_a_queued_turn_waits_for_its_prefill_group_after_a_restart() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    pe, de = FakeGroup("p0", Role.PREFILL), FakeGroup("d0", Role.DECODE)
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        bench.join(pe)
        bench.join(de)
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        queued = entry.state

    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        bench.join(de)
        await bench.fetch(de)
        waiting = bench.cell.find(turn_id="t1").state
        bench.join(pe)
        await bench.settled()
        planned = bench.cell.find(turn_id="t1").state

    assert [queued, waiting, planned] == [TurnState.GROUP_QUEUE, TurnState.GROUP_QUEUE, TurnState.PLANNED]
    assert len(de.plans) == 1


async def test_a_queued_turn_whose_prefill_group_stays_away_goes_to_another_one() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    de = FakeGroup("d0", Role.DECODE)
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        bench.join(de)
        await bench.cell.intake.submit(submission("a"))
        await bench.fetch(bench.join(FakeGroup("p0", Role.PREFILL)))

    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        bench.join(de)
        await bench.fetch(de)
        await bench.fetch(bench.join(FakeGroup("p1", Role.PREFILL)))
        clock.now_s += bench.cell.core.bounds.lease_s
        bench.cell.leases.heard(bench.groups["d0"].hello().group_id)
        bench.cell.leases.heard(bench.groups["p1"].hello().group_id)
        bench.cell.leases.sweep()
        await bench.settled()
        entry = bench.cell.find(turn_id="t1")

    assert [entry.state, entry.attempt] == [TurnState.PLANNED, 2]
    assert entry.pe is not None
    assert entry.pe.group_id == "p1"
