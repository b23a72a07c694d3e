"""A store in memory: the truth of the simulator and of tests. It outlives its owners, as a Redis would.

Nothing here awaits, so each call is atomic by itself.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from dualpath.model.errors import Stale
from dualpath.model.ids import BlockKey, TurnId
from dualpath.scheduler.lifecycle.changes import (
    AddEvent,
    ChangeSet,
    CloseRecord,
    Dequeue,
    DropContext,
    DropIdempotency,
    DropTurn,
    Enqueue,
    OpenRecord,
    Operation,
    PutContext,
    PutIdempotency,
    PutPrompt,
    PutTurn,
    StoredCell,
)
from dualpath.scheduler.ports import Clock, Leased, Tenure
from dualpath.scheduler.stores.bounds import StoreBounds, check_bounds


@dataclass(frozen=True, slots=True)
class _Lease:
    owner: str
    ends_at_s: float


class MemoryStore:
    """A TurnStore for one cell. Schedulers that compete for the cell share one object."""

    def __init__(self, clock: Clock, *, bounds: StoreBounds | None = None) -> None:
        self._clock = clock
        self._bounds = bounds or StoreBounds()
        self._epoch = 0
        self._token: str | None = None
        self._lease: _Lease | None = None
        self._turns: dict[TurnId, bytes] = {}
        self._prompts: dict[TurnId, bytes] = {}
        self._lines: dict[str, dict[TurnId, int]] = {}
        self._records: dict[str, int] = {}
        self._contexts: dict[BlockKey, tuple[BlockKey, int]] = {}
        self._idempotency: dict[str, TurnId] = {}
        self._events: deque[bytes] = deque(maxlen=self._bounds.events_max)
        self._changes_applied = 0

    async def acquire(self, owner: str, lease_s: float) -> Tenure:
        """Become the writer; an owner of the same name may come back at once, its older tenure is deposed."""
        now_s = self._clock.monotonic_s()
        if self._lease and self._lease.owner != owner and self._lease.ends_at_s > now_s:
            raise Leased(self._lease.owner, retry_after_s=self._lease.ends_at_s - now_s)
        self._epoch += 1
        self._token = f"{self._epoch}:memory"  # an epoch never comes back here, so it needs no random part
        self._lease = _Lease(owner, now_s + lease_s)
        return Tenure(self._epoch, self._token)

    async def renew(self, tenure: Tenure, lease_s: float) -> None:
        self._check(tenure)
        owner = self._lease.owner if self._lease else ""
        self._lease = _Lease(owner, self._clock.monotonic_s() + lease_s)

    async def release(self, tenure: Tenure) -> None:
        if tenure.token == self._token:
            self._token = self._lease = None

    async def load(self, tenure: Tenure) -> StoredCell:
        self._check(tenure)
        return StoredCell(
            turns=dict(sorted(self._turns.items())),
            prompts=dict(sorted(self._prompts.items())),
            lines={name: _in_order(line) for name, line in sorted(self._lines.items())},
            records=dict(sorted(self._records.items())),
            contexts=dict(self._contexts),
            idempotency=dict(sorted(self._idempotency.items())),
            events=tuple(self._events),
            changes_applied=self._changes_applied,
        )

    async def apply(self, changes: Sequence[ChangeSet], tenure: Tenure) -> None:
        written = [change_set for change_set in changes if change_set]
        if not written:
            return
        check_bounds(written, self._bounds)
        self._check(tenure)
        for change_set in written:
            for operation in change_set.operations:
                self._write(operation)
        self._changes_applied += len(written)

    async def close(self) -> None:
        """Nothing to free: the truth stays for the next owner."""

    def _check(self, tenure: Tenure) -> None:
        if tenure.token != self._token:
            holder = f"epoch {self._epoch}" if self._token else "nobody"
            raise Stale(f"the cell belongs to {holder}, the call comes from epoch {tenure.epoch}")

    def _write(self, operation: Operation) -> None:
        match operation:
            case PutTurn(turn_id, record):
                self._turns[turn_id] = record
            case PutPrompt(turn_id, prompt):
                self._prompts[turn_id] = prompt
            case DropTurn(turn_id):
                self._turns.pop(turn_id, None)
                self._prompts.pop(turn_id, None)
            case Enqueue(line, turn_id, arrival):
                self._lines.setdefault(line, {})[turn_id] = arrival
            case Dequeue(line, turn_id):
                self._dequeue(line, turn_id)
            case OpenRecord(key, amount):
                self._records[key] = amount
            case CloseRecord(key):
                self._records.pop(key, None)
            case PutContext(key, parent, tokens):
                self._contexts[key] = (parent, tokens)  # a key that is there keeps its place in the order
            case DropContext(key):
                self._contexts.pop(key, None)
            case PutIdempotency(key, turn_id):
                self._idempotency[key] = turn_id
            case DropIdempotency(key):
                self._idempotency.pop(key, None)
            case AddEvent(event):
                self._events.append(event)
            case _:
                assert_never(operation)

    def _dequeue(self, name: str, turn_id: TurnId) -> None:
        line = self._lines.get(name, {})
        line.pop(turn_id, None)
        if not line:
            self._lines.pop(name, None)


def _in_order(line: dict[TurnId, int]) -> tuple[tuple[int, TurnId], ...]:
    return tuple(sorted((arrival, turn_id) for turn_id, arrival in line.items()))
