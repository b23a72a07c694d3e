"""Frames of a stream that is over still come in: what they say is of the leader that is gone."""

from cell_support import FakeGroup, running_cell
from dualpath.model.ids import GroupId
from dualpath.model.turn import Role
from dualpath.scheduler.lifecycle.engines import GroupState


async def test_a_leader_that_started_anew_does_not_drain_because_the_old_one_did() -> None:
    async with running_cell() as bench:
        bench.join(FakeGroup("p0", Role.PREFILL, epoch=1))
        bench.join(FakeGroup("p0", Role.PREFILL, epoch=2))

        bench.cell.leases.draining(GroupId("p0"), 1)
        after_late_frame = bench.cell.core.ledger.groups[GroupId("p0")].state
        bench.cell.leases.draining(GroupId("p0"), 2)

        assert after_late_frame is GroupState.READY
        assert bench.cell.core.ledger.groups[GroupId("p0")].state is GroupState.DRAINING
