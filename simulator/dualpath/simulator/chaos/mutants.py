"""Bugs to plant in the scheduler for one run: does the suite notice? Each is a slip that a real system has shipped.

They replace methods from outside and put them back; nothing of the scheduler knows of them.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from dualpath.model.errors import Rejected
from dualpath.scheduler.lifecycle import records
from dualpath.scheduler.lifecycle.changes import ChangeSet, CloseRecord, OpenRecord, StoredCell
from dualpath.scheduler.lifecycle.engines import GroupEntry
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, PrefillSnapshot
from dualpath.scheduler.ports import Tenure
from dualpath.scheduler.service.settle import Settle
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.simulator.chaos.store import Truth

TTL_S = 0.3  # after which a store with a time to live has forgotten a record
UNSYNCED_S = 0.5  # of writes that a store without fsync loses when it restarts

Replaced = tuple[object, str, object]  # whose attribute, its name, what it is instead


class Mutant(NamedTuple):
    """A planted bug: in a sentence, and the attributes that make it."""

    about: str
    replaced: Callable[[], Sequence[Replaced]]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The scheduler with one bug, or as it is where `name` is empty. Raises Rejected for an unknown name."""
    if name and name not in MUTANTS:
        raise Rejected(f"mutant {name!r} is unknown, wanted one of {', '.join(MUTANTS)}", field="mutant")
    replaced = MUTANTS[name].replaced() if name else ()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in replaced]
    try:
        for owner, attribute, instead in replaced:
            setattr(owner, attribute, instead)
        yield
    finally:
        for owner, attribute, was in before:
            setattr(owner, attribute, was)


def _drop_epoch_check() -> Sequence[Replaced]:
    return ((MemoryStore, "_check", lambda self, tenure: None),)


def _double_release() -> Sequence[Replaced]:
    let_go = Ledger._let_go

    def twice(self: Ledger, entry: TurnEntry) -> None:
        held = dict(entry.held)
        let_go(self, entry)
        for resource, was in held.items():
            self.loads.remove(resource, was.holder, was.amount)

    return ((Ledger, "_let_go", twice),)


def _skip_fsync() -> Sequence[Replaced]:
    """The store answers, and what it answered is not on disk: a restart loses the last writes."""
    apply = MemoryStore.apply

    async def unsynced(self: MemoryStore, changes: Sequence[ChangeSet], tenure: Tenure) -> None:
        copies: list[tuple[float, dict[str, Any]]] = self.__dict__.setdefault("_copies", [])
        copies.append((self._clock.monotonic_s(), _copy(self)))
        await apply(self, changes, tenure)

    def restart(self: Truth, down_s: float) -> None:
        self.refuses_until_s = self.timeline.now_s + down_s
        lost = [
            copy for at_s, copy in self.store.__dict__.get("_copies", ()) if at_s >= self.timeline.now_s - UNSYNCED_S
        ]
        if lost:
            self.store.__dict__.update(lost[0])

    return ((MemoryStore, "apply", unsynced), (Truth, "restart", restart))


def _copy(memory: MemoryStore) -> dict[str, Any]:
    kept = {name: dict(value) for name, value in memory.__dict__.items() if isinstance(value, dict)}
    kept["_lines"] = {name: dict(line) for name, line in memory._lines.items()}
    return kept


def _lifo_pop() -> Sequence[Replaced]:
    """The youngest turn goes first."""
    prefill_snapshot = Ledger.prefill_snapshot

    def youngest_first(self: Ledger, group: GroupEntry, *, rotation: int) -> PrefillSnapshot:
        snapshot = prefill_snapshot(self, group, rotation=rotation)
        return replace(snapshot, waiting=list(snapshot.waiting)[::-1])

    return ((Ledger, "prefill_snapshot", youngest_first),)


def _omit_checksum() -> Sequence[Replaced]:
    return ((records, "_checked", lambda record, what: record[:-4]),)


def _header_only_checksum() -> Sequence[Replaced]:
    """The tokens of a result are not covered."""
    checked, encode, length = records._checked, TurnEntry.encode, records._LENGTH

    def covered(body: bytes) -> bytes:
        return length.pack(zlib.crc32(body[: length.size + length.unpack_from(body)[0]]))

    def encode_head(self: TurnEntry, header: bytes | None = None) -> bytes:
        body = encode(self, header)[: -length.size]
        return body + covered(body)

    def check_head(record: bytes, what: str) -> bytes:
        body = record[: -length.size]
        if what != "turn record" or record[-length.size :] != covered(body):
            return checked(record, what)
        return body

    return ((records, "_checked", check_head), (TurnEntry, "encode", encode_head))


def _lowest_index_tie() -> Sequence[Replaced]:
    """Nothing rotates: among equals the first one is taken, always."""
    prefill_snapshot, decode_snapshot = Ledger.prefill_snapshot, Ledger.decode_snapshot

    def prefill(self: Ledger, group: GroupEntry, *, rotation: int) -> PrefillSnapshot:
        return prefill_snapshot(self, group, rotation=0)

    def decode(self: Ledger, group: GroupEntry, *, rotation: int) -> DecodeSnapshot:
        return decode_snapshot(self, group, rotation=0)

    return ((Ledger, "prefill_snapshot", prefill), (Ledger, "decode_snapshot", decode))


def _ttl_on_ledger() -> Sequence[Replaced]:
    """What was reserved is forgotten by the store after a while, whether it is given back or not."""
    write, load = MemoryStore._write, MemoryStore.load

    def stamped(self: MemoryStore, operation: Any) -> None:
        stamps: dict[str, float] = self.__dict__.setdefault("_stamps", {})
        if isinstance(operation, OpenRecord):
            stamps[operation.key] = self._clock.monotonic_s()
        elif isinstance(operation, CloseRecord):
            stamps.pop(operation.key, None)
        write(self, operation)

    async def load_young(self: MemoryStore, tenure: Tenure) -> StoredCell:
        now_s = self._clock.monotonic_s()
        for key, at_s in self.__dict__.get("_stamps", {}).items():
            if now_s - at_s > TTL_S:
                self._records.pop(key, None)
        return await load(self, tenure)

    return ((MemoryStore, "_write", stamped), (MemoryStore, "load", load_young))


def _forgotten_cancel() -> Sequence[Replaced]:
    return ((Settle, "_cancel_both", lambda self, entry, reason: None),)


def _stale_report() -> Sequence[Replaced]:
    """A report that comes late replaces what a newer one said."""
    take = GroupEntry.take

    def take_any(self: GroupEntry, report: Any, now_s: float) -> bool:
        self.report_seq = min(self.report_seq, report.report_seq - 1)
        return take(self, report, now_s)

    return ((GroupEntry, "take", take_any),)


MUTANTS: dict[str, Mutant] = {
    "drop_epoch_check": Mutant("the store takes writes of a scheduler that was deposed", _drop_epoch_check),
    "double_release": Mutant("what an attempt held is given back twice when it ends", _double_release),
    "skip_fsync": Mutant("the store answers before its write is on disk, and restarts", _skip_fsync),
    "lifo_pop": Mutant("a fetch takes the youngest turn of the prefill FIFO", _lifo_pop),
    "omit_checksum": Mutant("records are read without a look at their checksum", _omit_checksum),
    "lowest_index_tie": Mutant("of equal engines the first is always taken", _lowest_index_tie),
    "ttl_on_ledger": Mutant("the store forgets reservations after a while", _ttl_on_ledger),
    "header_only_checksum": Mutant("a record's checksum covers its head, not its tokens", _header_only_checksum),
    "forgotten_cancel": Mutant(
        "an attempt that is over is cancelled in the ledger, not at the agents", _forgotten_cancel
    ),
    "stale_report": Mutant("a load report that comes late replaces a newer one", _stale_report),
}
