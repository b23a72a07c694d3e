"""Groups over time: frames of a stream that is over, groups that do not report, groups that have just come."""

import pytest

from cell_support import Bench, FakeGroup, running_cell, submission
from dualpath.model.ids import GroupId
from dualpath.model.turn import Role
from dualpath.scheduler.lifecycle.engines import GroupState
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds

WIDE = PolicyLimits(alpha_tokens=1_000_000, beta_tokens=1_000_000)


async def test_a_group_has_one_stream_and_the_other_is_ended() -> None:
    async with running_cell() as bench:
        first = bench.join(FakeGroup("p0", Role.PREFILL))
        second = bench.join(FakeGroup("p0", Role.PREFILL))

        again = bench.join(first)

        assert [first.closed, second.closed] == [1, 1]
        assert bench.cell.core.links[GroupId("p0")] is again


async def test_a_leader_that_started_anew_does_not_drain_because_the_old_one_did() -> None:
    async with running_cell() as bench:
        bench.join(FakeGroup("p0", Role.PREFILL, epoch=1))
        bench.join(FakeGroup("p0", Role.PREFILL, epoch=2))

        bench.cell.leases.draining(GroupId("p0"), 1)
        after_late_frame = bench.cell.core.ledger.groups[GroupId("p0")].state
        bench.cell.leases.draining(GroupId("p0"), 2)

        assert after_late_frame is GroupState.READY
        assert bench.cell.core.ledger.groups[GroupId("p0")].state is GroupState.DRAINING


async def test_a_group_that_sends_frames_but_no_reports_gets_no_turns_until_it_reports() -> None:
    async with running_cell(bounds=ServiceBounds(lease_s=3.0)) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        await bench.fetch(pe)  # its fetch stays open
        for _ in range(4):
            bench.clock.now_s += 1.0
            bench.cell.leases.heard(GroupId("p0"))
            bench.cell.leases.sweep()
        state = bench.cell.core.ledger.groups[GroupId("p0")].state
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.settled()
        while_stale = entry.pe
        await bench.fetch(pe)

    assert state is GroupState.STALE
    assert while_stale is None
    assert entry.pe is not None


async def test_a_decode_group_that_went_silent_about_its_load_gives_its_queue_to_the_others() -> None:
    async with running_cell(bounds=ServiceBounds(lease_s=3.0)) as bench:
        pe, full, other = (
            bench.join(FakeGroup("p0", Role.PREFILL)),
            bench.join(FakeGroup("d0", Role.DECODE)),
            FakeGroup("d1", Role.DECODE),
        )
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        queued_at = entry.de_group
        bench.join(other)
        bench.clock.now_s += 2.9
        for group in (pe, other):
            bench.cell.leases.report(group.report(), fetch=True)
        bench.clock.now_s += 0.2
        for group in (pe, full, other):
            bench.cell.leases.heard(GroupId(group.name))
        bench.cell.leases.sweep()
        await bench.settled()

    assert queued_at == "d0"
    assert entry.de_group == "d1"


@pytest.mark.parametrize("slow_start_s", [0.0, 5.0])
async def test_an_engine_that_comes_back_takes_its_share_slowly(slow_start_s: float) -> None:
    """Four DE groups with 40 turns each, one of which starts anew empty: how much of the next 40 turns it gets."""
    async with running_cell(bounds=ServiceBounds(slow_start_s=slow_start_s, lease_s=60.0), limits=WIDE) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        groups = [bench.join(FakeGroup(f"d{n}", Role.DECODE, hbm_tokens=1_000_000)) for n in range(4)]
        bench.clock.now_s += 10.0
        bench.cell.leases.sweep()  # all are warm
        for n in range(160):
            await bench.cell.intake.submit(submission(f"old{n}", tokens=100))
        await _place_all(bench, pe, groups)
        fresh = groups[3] = FakeGroup("d3", Role.DECODE, hbm_tokens=1_000_000, epoch=2)
        bench.join(fresh)  # its 40 turns begin anew, before those that come now
        before = [len(group.plans) for group in groups]
        new = [await bench.cell.intake.submit(submission(f"new{n}", tokens=100)) for n in range(40)]
        await _place_all(bench, pe, groups)
        given = [len(group.plans) - count for group, count in zip(groups, before, strict=True)]

    assert all(entry.de is not None for entry in new)
    assert sum(given) == 80  # the 40 that were lost and the 40 that are new
    fair = 80 / 4
    assert (given[3] <= 1.5 * fair) == (slow_start_s > 0)


async def _place_all(bench: Bench, pe: FakeGroup, groups: list[FakeGroup]) -> None:
    await bench.fetch(pe)
    for group in groups:
        await bench.fetch(group)
    await bench.settled()
