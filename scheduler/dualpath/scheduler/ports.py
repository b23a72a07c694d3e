"""What the scheduler's service needs from outside. Each Protocol has a real and a second implementation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dualpath.model.errors import Refused
from dualpath.scheduler.lifecycle.changes import ChangeSet, StoredCell


@dataclass(frozen=True, slots=True)
class Tenure:
    """The right to write for a cell: the epoch rises with each owner, the token cannot be guessed or repeated."""

    epoch: int
    token: str  # "{epoch}:{uuid}": a store that lost its tail could hand out an epoch twice, never a token


class Leased(Refused):
    """Another owner's lease is alive. An owner is a name, then `|` and the address at which others dial it."""

    default_reason = "LEASED"

    def __init__(self, owner: str, *, retry_after_s: float) -> None:
        super().__init__(f"the cell belongs to {owner}", retry_after_s=retry_after_s)
        self.address = owner.rpartition("|")[2] if "|" in owner else ""


class TurnStore(Protocol):
    """The truth about a cell's turns. Every write and sweep carries the tenure; a deposed one raises Stale."""

    async def acquire(self, owner: str, lease_s: float) -> Tenure:
        """Become the writer. Raises Leased (with retry_after_s) while another owner's lease is alive."""
        ...

    async def renew(self, tenure: Tenure, lease_s: float) -> None:
        """Prolong the lease; raises Stale if another owner has taken over."""
        ...

    async def release(self, tenure: Tenure) -> None:
        """Give the lease back so that the next owner need not wait; a deposed tenure changes nothing."""
        ...

    async def load(self, tenure: Tenure) -> StoredCell:
        """Read the whole cell; raises Stale like a write, Broken if what is stored does not hold together."""
        ...

    async def apply(self, changes: Sequence[ChangeSet], tenure: Tenure) -> None:
        """Apply change sets in order, all of them or none.

        raises  Stale if the tenure is deposed or the store has lost writes of it,
                OutcomeUnknown if the connection broke after sending,
                Refused if nothing was written and a later try may succeed
        """
        ...

    async def close(self) -> None: ...


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds of a clock that never jumps; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class IdSource(Protocol):
    def turn_id(self) -> str:
        """A new turn id, unique over all schedulers of all time."""
        ...
