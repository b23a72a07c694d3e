"""Rare ways made common: points of the real service, wrapped from outside, take the way that production seldom sees."""

from collections.abc import Callable

from dualpath.model.errors import Refused
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.intake import Submission

LATER_S = 0.05

Rarely = Callable[[str], bool]  # is it time for the rare way of this point?


def make_common(cell: Cell, rarely: Rarely, later: Callable[[float, Callable[[], None]], None]) -> None:
    """Wrap one cell's parts; another cell, and the classes, stay as they are."""
    leases_sweep, settle_sweep = cell.leases.sweep, cell.settle.sweep
    pump, accept = cell.dispatch.pump, cell.intake.accept

    def sweep_groups() -> None:
        if not rarely("sweep of the leases left out"):
            leases_sweep()

    def sweep_turns() -> None:
        if not rarely("sweep of the deadlines left out"):
            settle_sweep()

    def look() -> None:
        if rarely("dispatch looks later"):
            later(LATER_S, cell.core.wake.set)
        else:
            pump()

    def take(submission: Submission, durable: Callable[[TurnEntry], None]) -> None:
        if rarely("submission refused"):
            raise Refused("full, by chance", retry_after_s=0.1)
        accept(submission, durable)

    cell.leases.sweep = sweep_groups  # type: ignore[method-assign]
    cell.settle.sweep = sweep_turns  # type: ignore[method-assign]
    cell.dispatch.pump = look  # type: ignore[method-assign]
    cell.intake.accept = take  # type: ignore[method-assign]
