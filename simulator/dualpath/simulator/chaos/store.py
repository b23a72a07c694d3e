"""The one truth of a run, and each scheduler's own shaky way to it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from dualpath.model.errors import OutcomeUnknown, Refused, Stale
from dualpath.scheduler.lifecycle.changes import AddEvent, ChangeSet, CloseRecord, OpenRecord, PutPrompt, StoredCell
from dualpath.scheduler.ports import Tenure
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.simulator.chaos.history import Entry, Event, Hit
from dualpath.simulator.chaos.weather import Fault, Weather
from dualpath.simulator.machine.timeline import Timeline

CRC_BYTES = 4


class Truth:
    """The store itself, with a log of what it took, and the faults that are due."""

    def __init__(
        self,
        timeline: Timeline,
        chance: random.Random,
        weather: Weather,
        entries: list[Entry],
        hit: Hit,
    ) -> None:
        self.timeline = timeline
        self.chance = chance
        self.wait_s = weather.store_wait_s
        self.fault_p = weather.store_p
        self.damage_p = weather.damage_p
        self.entries = entries
        self.hit = hit
        self.store = MemoryStore(self)
        self.crash_next = False  # the next write takes its scheduler down with it
        self.refuses_until_s = 0.0

    def monotonic_s(self) -> float:
        """The store's own clock: leases of the cell are judged by it."""
        return self.timeline.now_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def heal(self) -> None:
        self.fault_p = self.damage_p = self.refuses_until_s = 0.0
        self.crash_next = False

    def restart(self, down_s: float) -> None:
        """Gone for a while; everything it has answered is there again."""
        self.refuses_until_s = self.timeline.now_s + down_s


class ShakyStore:
    """A TurnStore: one scheduler's connection. `thawed` is cleared while that scheduler is frozen."""

    def __init__(self, truth: Truth, thawed: asyncio.Event, crash: Callable[[], None]) -> None:
        self._truth = truth
        self._thawed = thawed
        self._crash = crash
        self.is_damaged = False  # what was read last

    async def acquire(self, owner: str, lease_s: float) -> Tenure:
        await self._way_there("acquire")
        tenure = await self._truth.store.acquire(owner, lease_s)
        self._note(Event.EPOCH, tenure.epoch)
        return tenure

    async def renew(self, tenure: Tenure, lease_s: float) -> None:
        await self._way_there("renew")
        await self._truth.store.renew(tenure, lease_s)

    async def release(self, tenure: Tenure) -> None:
        await self._truth.store.release(tenure)

    async def load(self, tenure: Tenure) -> StoredCell:
        """What is stored, now and then with one bit wrong."""
        truth = self._truth
        await self._way_there("load")
        stored = await truth.store.load(tenure)
        self.is_damaged = bool(stored.turns) and truth.chance.random() < truth.damage_p
        return _damaged(stored, truth.chance, truth.hit) if self.is_damaged else stored

    async def apply(self, changes: Sequence[ChangeSet], tenure: Tenure) -> None:
        truth = self._truth
        await self._way_there("apply")
        try:
            await truth.store.apply(changes, tenure)
        except Stale:
            self._note(Event.REFUSED_STALE, tenure.epoch)
            raise
        self._note(Event.WRITTEN, tenure.epoch, *_written(changes))
        if truth.crash_next:
            truth.crash_next = False
            truth.hit(Fault.CRASH_AFTER_WRITE, f"{min(len(changes), 4)} change sets")
            self._crash()
            await asyncio.Event().wait()
        if truth.fault_p and truth.chance.random() < truth.fault_p:
            truth.hit(Fault.STORE_ANSWER_LOST, "apply")
            self._note(Event.ANSWER_LOST, tenure.epoch)
            raise OutcomeUnknown("the connection broke after sending")

    async def close(self) -> None:
        """Nothing to free."""

    async def _way_there(self, call: str) -> None:
        truth = self._truth
        if truth.wait_s:
            await asyncio.sleep(truth.wait_s * truth.chance.random())
        if not self._thawed.is_set():
            await self._thawed.wait()
        if truth.timeline.now_s < truth.refuses_until_s or (truth.fault_p and truth.chance.random() < truth.fault_p):
            truth.hit(Fault.STORE_REFUSES, call)
            raise Refused("the store is not there", retry_after_s=0.1)

    def _note(self, event: Event, *fields: object) -> None:
        self._truth.entries.append((self._truth.timeline.now_s, event, *fields))


def _damaged(stored: StoredCell, chance: random.Random, hit: Hit) -> StoredCell:
    """One bit of one turn flipped: of its prompt, of its record's head, or of its result's tokens."""
    with_tokens = [turn_id for turn_id, record in stored.turns.items() if _head_bytes(record) + CRC_BYTES < len(record)]
    part = chance.choice(("prompt", "head", "tokens") if with_tokens else ("prompt", "head"))
    hit(Fault.RECORD_DAMAGED, part)
    turn_id = chance.choice(with_tokens if part == "tokens" else list(stored.turns))
    pieces = dict(stored.prompts if part == "prompt" else stored.turns)
    piece = bytearray(pieces[turn_id])
    first = _head_bytes(piece) if part == "tokens" else 0
    piece[chance.randrange(first, len(piece) - CRC_BYTES)] ^= 1 << chance.randrange(8)
    pieces[turn_id] = bytes(piece)
    return replace(stored, prompts=pieces) if part == "prompt" else replace(stored, turns=pieces)


def _head_bytes(record: bytes | bytearray) -> int:
    """Up to where a turn's record is its head; tokens follow, if it has ended with some (lifecycle/records.py)."""
    return 4 + int.from_bytes(record[:4], "little")


def _written(changes: Sequence[ChangeSet]) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...]]:
    """What the checker follows of a write: ((record, amount, -1 for closed), ...), new turns, ended turns."""
    records: list[tuple[str, int]] = []
    first: list[str] = []
    ended: list[str] = []
    for change_set in changes:
        for operation in change_set.operations:
            match operation:
                case OpenRecord(key, amount):
                    records.append((key, amount))
                case CloseRecord(key):
                    records.append((key, -1))
                case PutPrompt(turn_id, _):
                    first.append(turn_id)
                case AddEvent(event):
                    ended.append(orjson.loads(event)["turn_id"])
    return tuple(records), tuple(first), tuple(ended)
