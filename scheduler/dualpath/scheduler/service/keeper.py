"""Holds the post of the cell's scheduler: stands by until the cell can be had, leads it, and stands by again."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from dualpath.model.errors import OutcomeUnknown, Refused, Stale
from dualpath.scheduler.ports import Clock, Leased
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.post import Post

TRIES = 6  # to become active, in the time of one lease
WAIT_MIN_S = 0.002  # a lease that ends in less than that is asked for after this
log = structlog.get_logger("dualpath.post")


class Keeper:
    """Use `run`.

    open_cell  becomes the cell's scheduler, as Cell.open does
    beat_s     every so often each stream carries something
    changed    awaited whenever the post was taken or given up, or the active scheduler is another one
    """

    def __init__(
        self,
        post: Post,
        open_cell: Callable[[], Awaitable[Cell]],
        clock: Clock,
        *,
        store_lease_s: float,
        beat_s: float,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._post = post
        self._open_cell = open_cell
        self._clock = clock
        self._store_lease_s = store_lease_s
        self._beat_s = beat_s
        self._changed = changed

    async def run(self) -> None:
        """Until cancelled; then the lease is given back, so that another scheduler need not wait for its end."""
        while True:
            cell = await self._stand_by()
            try:
                await self._lead(cell)
            except asyncio.CancelledError:
                await _release(cell)
                raise
            await self._changed()

    async def _stand_by(self) -> Cell:
        """Try to become active, again and again."""
        told = ""
        while True:
            try:
                return await self._open_cell()
            except Leased as error:
                why, active, wait_s = str(error), error.address, error.retry_after_s
            except (Refused, OutcomeUnknown, Stale) as error:
                why, active, wait_s = str(error), "", self._store_lease_s
            if why != told:
                told, self._post.active_address = why, active
                log.info("standing by", why=why)
                await self._changed()
            await self._clock.sleep(max(WAIT_MIN_S, min(wait_s, self._store_lease_s / TRIES)))

    async def _lead(self, cell: Cell) -> None:
        """Return when deposed, or when the lease is over: another scheduler may be active from then on."""
        self._post.take(cell)
        try:
            await self._changed()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(cell.run(store_lease_s=self._store_lease_s))
                tasks.create_task(self._beat())
                tasks.create_task(self._watch(cell))
        except* Stale as stale:
            log.warning("deposed", why=str(_first(stale)), epoch=cell.core.tenure.epoch)
        finally:
            self._post.give_up()

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(self._beat_s)
            if self._post.is_active:
                self._post.beat()

    async def _watch(self, cell: Cell) -> None:
        while (left_s := cell.lease_ends_at_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(left_s)
        raise Stale("the lease is over and the store could not be asked to prolong it", reason="LEASE_OVER")


def _first(group: BaseExceptionGroup[Stale]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _release(cell: Cell) -> None:
    try:
        await cell.close()
    except (Refused, OutcomeUnknown) as error:
        log.warning("lease not given back", why=str(error))
