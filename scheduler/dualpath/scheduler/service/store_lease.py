"""The lease of one tenure in the store, and until when it certainly holds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from dualpath.model.errors import OutcomeUnknown, Refused
from dualpath.scheduler.ports import Clock, Tenure, TurnStore

RENEWALS = 3  # of a lease before it would end; after a failed one, the next comes three times as soon
log = structlog.get_logger("dualpath.cell")


class StoreLease:
    """Times are taken before the store is asked, so the store never ends a lease sooner than we think."""

    def __init__(self, store: TurnStore, tenure: Tenure, clock: Clock, *, asked_at_s: float, lease_s: float) -> None:
        self._store = store
        self._tenure = tenure
        self._clock = clock
        self._asked_at_s = asked_at_s
        self.ends_at_s = asked_at_s + lease_s

    async def renew(self, lease_s: float) -> bool:
        """False where the store could not be asked; raises Stale where another scheduler has taken over."""
        asked_at_s = self._clock.monotonic_s()
        try:
            await self._store.renew(self._tenure, lease_s)
        except (Refused, OutcomeUnknown) as error:
            log.warning("store lease not renewed", why=str(error))
            return False
        self._asked_at_s, self.ends_at_s = asked_at_s, asked_at_s + lease_s
        return True

    async def keep(self, lease_s: float) -> None:
        """Renew until cancelled; raises Stale."""
        renewed = True
        while True:
            await self._clock.sleep(lease_s / RENEWALS if renewed else lease_s / RENEWALS**2)
            renewed = await self.renew(lease_s)

    @asynccontextmanager
    async def kept(self, lease_s: float) -> AsyncIterator[None]:
        """Renew within the block, which may be long or may not let others run, and once more at its end if due."""
        keeping = asyncio.create_task(self.keep(lease_s), name="store lease")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            if not keeping.cancelled():
                keeping.exception()  # Stale: the block's own calls to the store say so as well
        if self._clock.monotonic_s() - self._asked_at_s > lease_s / RENEWALS:
            await self.renew(lease_s)
