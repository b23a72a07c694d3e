"""One active scheduler: its parts joined, its tasks run. The simulator drives this same object."""

import asyncio
from dataclasses import dataclass

import structlog

from dualpath.model.errors import Rejected
from dualpath.model.ids import TurnId
from dualpath.model.turn import TurnState
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.policy.decisions import describe
from dualpath.scheduler.policy.registry import Policy
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.ports import Clock, IdSource, Tenure, TurnStore
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.dispatch import Dispatch
from dualpath.scheduler.service.events import EventHub
from dualpath.scheduler.service.intake import Intake
from dualpath.scheduler.service.journal import Journal
from dualpath.scheduler.service.leases import Leases
from dualpath.scheduler.service.settle import Settle
from dualpath.scheduler.service.store_lease import StoreLease

log = structlog.get_logger("dualpath.cell")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a turn stands and what it waits for; place 0 means in no line."""

    place: int
    waits_for: str


class Cell:
    """Built by `open`, run by `run`."""

    def __init__(self, core: Core, store: TurnStore, lease: StoreLease) -> None:
        self.core = core
        self._store = store
        self._lease = lease
        self.intake = Intake(core)
        self.settle = Settle(core)
        self.dispatch = Dispatch(core, self.settle.expire)
        self.leases = Leases(core, self.dispatch, self.settle)
        self.started_at_s = core.now_s()

    @classmethod
    async def open(
        cls,
        store: TurnStore,
        *,
        cell: str,
        owner: str,
        clock: Clock,
        ids: IdSource,
        policy: Policy,
        limits: PolicyLimits,
        bounds: ServiceBounds,
        store_lease_s: float = 3.0,
    ) -> "Cell":
        """Become the cell's scheduler and rebuild its state from the store.

        raises  Refused while another scheduler's lease is alive, Broken if what is stored does not hold together
        """
        asked_at_s = clock.monotonic_s()
        tenure = await store.acquire(owner, store_lease_s)
        lease = StoreLease(store, tenure, clock, asked_at_s=asked_at_s, lease_s=store_lease_s)
        async with lease.kept(store_lease_s):
            stored = await store.load(tenure)
            ledger = Ledger.rebuild(
                stored, now_s=clock.monotonic_s(), contexts_max=bounds.contexts_max, order=bounds.order
            )
        journal = Journal(store, tenure, clock, ledger, commit_max=bounds.commit_max, journal_max=bounds.journal_max)
        hub = EventHub(watchers_max=bounds.watchers_max, news_max=bounds.news_max)
        core = Core(cell, ledger, journal, tenure, clock, ids, policy, limits, bounds, hub)
        log.info("cell open", epoch=tenure.epoch, open_turns=ledger.open_count, contexts=len(ledger.contexts))
        return cls(core, store, lease)

    async def run(self, *, store_lease_s: float = 3.0) -> None:
        """Journal, dispatch, sweeps and the store's lease, until cancelled; raises Stale when deposed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.core.journal.run(), name="journal")
            tasks.create_task(self.dispatch.run(), name="dispatch")
            tasks.create_task(self._sweep(), name="sweep")
            tasks.create_task(self._lease.keep(store_lease_s), name="renew")

    @property
    def lease_ends_at_s(self) -> float:
        """Until then no other scheduler can lead the cell."""
        return self._lease.ends_at_s

    async def close(self, tenure: Tenure | None = None) -> None:
        """Give the store's lease back, so that the next scheduler need not wait for it to end."""
        await self._store.release(tenure or self.core.tenure)

    def find(self, *, turn_id: str = "", idempotency_key: str = "") -> TurnEntry:
        """raises Rejected for a turn that is unknown, or was dropped after its retention"""
        ledger = self.core.ledger
        found = ledger.turns.get(ledger.idempotency.get(idempotency_key, TurnId(turn_id)))
        if found is None:
            name = turn_id or idempotency_key
            raise Rejected(f"turn {name!r} is unknown here", field="turn_id", reason="UNKNOWN_TURN")
        return found

    def set_policy(self, policy: Policy) -> None:
        """Swap the policy of an idle cell; raises Rejected(CELL_BUSY) while turns wait or run."""
        if self.core.ledger.open_count:
            message = f"{self.core.ledger.open_count} turns wait or run, wanted none"
            raise Rejected(message, field="policy", reason="CELL_BUSY", precondition=True)
        self.core.policy = policy

    def standing(self, entry: TurnEntry) -> Standing:
        """Place in line and what has to happen for the turn to move."""
        ledger = self.core.ledger
        line = ledger.line_of(entry)
        place = line.place(entry.line_key) if line is not None else 0
        match entry.state:
            case TurnState.PREFILL_FIFO:
                ahead = f"{place - 1} turns ahead; " if place > 1 else ""
                return Standing(place, f"{ahead}a prefill engine at or under beta{self._last_stops()}")
            case TurnState.DECODE_QUEUE:
                return Standing(place, "a decode group")
            case TurnState.GROUP_QUEUE:
                return Standing(place, f"a decode engine of {entry.de_group} with the HBM{self._last_stops()}")
            case TurnState.PLANNED | TurnState.READING:
                return Standing(0, "its hit KV to be read")
            case TurnState.PREFILLING:
                return Standing(0, "its prefill to end")
            case TurnState.DECODING:
                return Standing(0, "its decode to end")
            case _:
                return Standing(0, "nothing: it has ended")

    def _last_stops(self) -> str:
        stops = self.dispatch.stops
        if not stops:
            return " (no group has fetched yet)"
        return " (last fetches: " + "; ".join(f"{group}: {describe(stop)}" for group, stop in stops.items()) + ")"

    async def _sweep(self) -> None:
        while True:
            await self.core.clock.sleep(self.core.bounds.sweep_s)
            self.leases.sweep()
            self.settle.sweep()
