"""One scheduler process of a run: a real `Cell`, the frames that reach it, how it dies or stands still."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualpath.model.errors import Broken, DualPathError, Refused, Rejected, Stale
from dualpath.model.ids import BlockKey
from dualpath.model.load import LoadReport
from dualpath.model.turn import TurnResult, TurnState
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.policy.decisions import DecodeDecision, Placement, PrefillDecision
from dualpath.scheduler.policy.registry import DUALPATH, Policy
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, PolicyLimits, PrefillSnapshot
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.events import Watcher
from dualpath.scheduler.service.intake import Submission
from dualpath.scheduler.service.messages import (
    AttemptKey,
    GroupMessage,
    Refusal,
    SendCommitAck,
    SendPlan,
    TurnNews,
)
from dualpath.simulator.chaos.history import Event
from dualpath.simulator.chaos.network import Way
from dualpath.simulator.chaos.rare import make_common
from dualpath.simulator.chaos.store import ShakyStore
from dualpath.simulator.chaos.weather import Fault

if TYPE_CHECKING:
    from dualpath.simulator.chaos.clients import Client
    from dualpath.simulator.chaos.leaders import Leader
    from dualpath.simulator.chaos.world import World

STORE_LEASE_S = 1.0
LIMITS = PolicyLimits(alpha_tokens=20, beta_tokens=30)
ATTEMPTS_MAX = 3
BOUNDS = ServiceBounds(lease_s=1.0, report_s=0.5, deadline_s=60.0, sweep_s=0.25, attempts_max=ATTEMPTS_MAX)
OPEN_RETRY_S = 0.2
OVERSLEPT_S = 0.15


class Stream:
    """A leader's Work stream as both ends see it; the service knows it as a GroupLink."""

    __slots__ = ("agent_epoch", "closed", "down", "early", "leader", "process", "up", "welcomed")

    def __init__(self, leader: "Leader", process: "Process", broken: Callable[[], None]) -> None:
        self.leader = leader
        self.process = process
        self.agent_epoch = leader.agent_epoch
        self.up = Way(broken)
        self.down = Way(broken)
        self.up.cut, self.down.cut = leader.cut_up, leader.cut_down
        self.closed = False  # the scheduler reads no more from it
        self.welcomed = False
        self.early: list[tuple[Any, ...]] = []  # said between Hello and Welcome

    def send(self, message: GroupMessage) -> None:
        world, group = self.process.world, self.leader.group_id
        if isinstance(message, SendPlan):
            turn, attempt, epoch = message.plan.turn, message.plan.attempt, message.plan.scheduler_epoch
            world.note(Event.PLAN_TOLD, group, turn.turn_id, attempt, turn.arrival, epoch)
        elif isinstance(message, SendCommitAck):
            world.note(Event.ACK_TOLD, group, message.key.turn_id, message.key.attempt)
        world.network.carry(self.down, type(message).__name__, self.leader.take, (self, message))

    def close(self) -> None:
        self.closed = True
        self.process.world.network.carry(self.down, "end", self.leader.take, (self, None))


class Ear(Watcher):
    """One client's way to hear of its turn: news go over the network as they come."""

    def __init__(self, process: "Process", client: "Client", stream: int) -> None:
        super().__init__(BOUNDS.news_max)
        self._process = process
        self._client = client
        self._stream = stream

    def push(self, news: TurnNews | Refusal) -> None:
        client = self._client
        phase = news.state.value if isinstance(news, TurnNews) else "refusal"
        self._process.world.network.carry(client.down, phase, client.hear, (self._process, self._stream, news))


class _Clock:
    """This process's own monotonic clock: it starts anywhere, goes at any rate, and stops no sleep before its time.

    Nothing wakes while the process is frozen.
    """

    def __init__(self, world: "World", offset_s: float, thawed: asyncio.Event, rarely: Callable[[str], bool]) -> None:
        self._timeline = world.timeline
        self._offset_s = offset_s
        self._rate = world.weather.clock_rate
        self._thawed = thawed
        self._rarely = rarely

    def monotonic_s(self) -> float:
        return self._timeline.now_s * self._rate + self._offset_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
        if self._rarely("sleep lasts longer"):
            await asyncio.sleep(OVERSLEPT_S)
        if not self._thawed.is_set():
            await self._thawed.wait()


class Process:
    """Takes over when it can, serves until it crashes or is deposed."""

    def __init__(self, world: "World", owner: str, chance: random.Random) -> None:
        self.world = world
        self.owner = owner
        self.alive = True
        self.cell: Cell | None = None
        self.opened_at_s = 0.0
        self.frozen = False
        self.streams: dict[Stream, None] = {}
        self.clients: dict[Client, None] = {}
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._backlog: list[tuple[Callable[[Any], None], Any]] = []
        self._rare_p = world.weather.rare_p
        self._chance = chance
        self._clock = _Clock(world, chance.choice((0.0, 1e3, 1e6)) * chance.random(), self._thawed, self._rarely)
        self._task = asyncio.get_running_loop().create_task(self._live())

    @property
    def is_serving(self) -> bool:
        return self.alive and self.cell is not None

    async def _live(self) -> None:
        world = self.world
        store = ShakyStore(world.truth, self._thawed, self.crash)
        try:
            cell = await self._open(store)
            if self._rare_p:
                make_common(cell, self._rarely, self._later)
            self._watch_leases(cell)
            world.note(Event.OPENED, cell.core.tenure.epoch, store.is_damaged)
            self.cell, self.opened_at_s = cell, world.timeline.now_s
            world.took_over()
            await cell.run(store_lease_s=STORE_LEASE_S)
        except* Stale:
            pass  # deposed: the process ends, as the real one does
        except* Broken as errors:
            world.fail(f"{errors.exceptions[0]!r}")
        except* Exception as errors:  # the real process would end too, and its owner would read a traceback
            world.fail(f"{errors.exceptions[0]!r}")
        finally:
            self._die()

    async def _open(self, store: ShakyStore) -> Cell:
        while True:
            try:
                return await Cell.open(
                    store,
                    cell="chaos",
                    owner=self.owner,
                    clock=self._clock,
                    ids=self.world,
                    policy=self._policy(),
                    limits=LIMITS,
                    bounds=replace(BOUNDS, commit_max=self.world.weather.commit_max),
                    store_lease_s=STORE_LEASE_S,
                )
            except Refused as error:
                await self._clock.sleep(min(OPEN_RETRY_S, error.retry_after_s))
            except Broken:
                if not store.is_damaged:
                    raise
                await self._clock.sleep(OPEN_RETRY_S)  # it refuses what it cannot trust, and is started again

    def crash(self) -> None:
        """Gone at once, with everything not yet in the store."""
        self._die()
        self._task.cancel()

    async def end(self) -> None:
        self.crash()
        await asyncio.wait([self._task])

    def freeze(self) -> None:
        self.frozen = True
        self._thawed.clear()

    def thaw(self) -> None:
        """Go on where it stood still. What reached it meanwhile is taken in one breath."""
        if not self.alive:
            return
        self.frozen = False
        self.world.note(Event.THAWED)
        self._thawed.set()
        backlog, self._backlog = self._backlog, []
        for take, frame in backlog:
            take(frame)

    def _die(self) -> None:
        if self.alive:
            self.alive = False
            self.world.died(self)

    def _rarely(self, point: str) -> bool:
        if self._rare_p and self._chance.random() < self._rare_p and not self.world.is_healed:
            self.world.hit(Fault.RARE_WAY, point)
            return True
        return False

    def _later(self, seconds: float, then: Callable[[], None]) -> None:
        self.world.timeline.at(self.world.timeline.now_s + seconds, lambda _: then())

    def _watch_leases(self, cell: Cell) -> None:
        """Write down which groups the sweep gives up; the way it is done stays as it is."""
        sweep = cell.leases.sweep

        def watched() -> None:
            before = tuple(cell.core.ledger.groups)
            sweep()
            for group_id in before:
                if group_id not in cell.core.ledger.groups:
                    self.world.note(Event.LEASE_ENDED, group_id, cell.core.tenure.epoch)

        cell.leases.sweep = watched  # type: ignore[method-assign]

    def _policy(self) -> Policy:
        """The paper's, with each decision written down beside what waited."""

        def assign_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
            decision = DUALPATH.assign_prefill(snapshot, limits)
            if len(decision.placements) > 1 and self._rarely("fetch cut to one turn"):
                decision = replace(decision, placements=decision.placements[:1])
            self._note_placed(TurnState.PREFILL_FIFO, None, decision.placements)
            return decision

        def assign_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> DecodeDecision:
            decision = DUALPATH.assign_decode(snapshot, limits)
            if decision.placements:
                group_id = decision.placements[0].engine_id.partition("-")[0]
                self._note_placed(TurnState.GROUP_QUEUE, group_id, decision.placements)
            return decision

        return replace(DUALPATH, assign_prefill=assign_prefill, assign_decode=assign_decode)

    def _note_placed(self, state: TurnState, group_id: str | None, placements: Sequence[Placement]) -> None:
        """Who waited is taken from the turns themselves, not from the line that the policy saw."""
        if not placements or self.cell is None:
            return
        waiting = sorted(
            (entry.turn.arrival, entry.turn.turn_id)
            for entry in self.cell.core.ledger.open_turns()
            if entry.state is state and (group_id is None or entry.de_group == group_id)
        )
        placed = tuple((placement.turn_id, placement.engine_id) for placement in placements)
        self.world.note(Event.PLACED, group_id or state.value, tuple(waiting), placed)

    # frames

    def _holds(self, take: Callable[[Any], None], frame: Any) -> bool:
        """False while the process runs; a frozen one finds the frame when it wakes up, a dead one never."""
        if self.frozen and self.alive:
            self._backlog.append((take, frame))
        return self.frozen or not self.alive or self.cell is None

    def take(self, item: tuple[Stream, tuple[Any, ...]]) -> None:
        """A frame of a leader, treated as api/agents.py treats it."""
        if self._holds(self.take, item):
            return
        stream, frame = item
        if stream.closed:
            return
        assert self.cell is not None
        if frame[0] == "hello":
            self._join(self.cell, stream, *frame[1:])
            return
        self.cell.leases.heard(stream.leader.group_id)
        try:
            self._take(self.cell, stream, frame)
        except Broken as error:
            self.world.breach("no_broken_law", f"{error!r} at {frame[0]}")
        except DualPathError:
            pass  # logged and left, as the api does

    def _join(self, cell: Cell, stream: Stream, hello: GroupHello, running: Iterable[AttemptKey]) -> None:
        world = self.world
        try:
            cell.leases.join(hello, running, stream)
        except Broken as error:
            world.breach("no_broken_law", f"{error!r} at hello")
        except Rejected:
            world.network.carry(stream.down, "refused", stream.leader.take, (stream, None))
        else:
            self.streams[stream] = None
            welcome = ("welcome", cell.core.tenure.epoch)
            world.network.carry(stream.down, "welcome", stream.leader.take, (stream, welcome))

    def _take(self, cell: Cell, stream: Stream, frame: tuple[Any, ...]) -> None:
        group_id = stream.leader.group_id
        match frame:
            case ("report", report, fetch):
                self._report(cell, report, fetch)
            case ("progress", key, state, read_done, prefill_done):
                cell.settle.progress(group_id, key, state, read_done=read_done, prefill_done=prefill_done)
            case ("commit", key, result, new_keys):
                self._commit(cell, stream, key, result, new_keys)
            case ("handback", key, reason):
                cell.settle.handback(group_id, key, reason, "by chance")
            case ("draining",):
                cell.leases.draining(group_id, stream.agent_epoch)

    def _report(self, cell: Cell, report: LoadReport, fetch: bool) -> None:
        """Take it; an older one must leave what a newer one said (F2)."""
        group = cell.core.ledger.groups.get(report.group_id)
        before = None
        if group is not None:
            said = (report.agent_epoch, report.report_seq)
            if said <= (group.hello.agent_epoch, group.report_seq):
                before = (group.report_seq, dict(group.engine_loads), dict(group.node_loads), group.fetch_open)
        cell.leases.report(report, fetch=fetch)
        if group is not None and before is not None:
            self.world.facts += 1
            after = (group.report_seq, dict(group.engine_loads), dict(group.node_loads), group.fetch_open)
            if after != before:
                self.world.breach(
                    "old_reports_change_nothing", f"{report.group_id}: {report.report_seq} over {before[0]}"
                )

    @staticmethod
    def _commit(
        cell: Cell, stream: Stream, key: AttemptKey, result: TurnResult, new_keys: tuple[BlockKey, ...]
    ) -> None:
        cell.settle.commit(stream.leader.group_id, key, result, new_keys)

    def left(self, stream: Stream) -> None:
        """The stream's end was noticed here."""
        self.streams.pop(stream, None)
        if self.alive and self.cell is not None and not self.frozen:
            self.cell.leases.left(stream.leader.group_id, stream)

    def take_submission(self, item: tuple["Client", int]) -> None:
        """A client's turn, treated as api/turns.py treats it."""
        if self._holds(self.take_submission, item):
            return
        client, stream = item
        assert self.cell is not None
        cell, ear = self.cell, Ear(self, client, stream)
        self.clients[client] = None

        def durable(entry: TurnEntry) -> None:
            turn = entry.turn
            self.world.note(Event.ACCEPTED, client.key, turn.turn_id, turn.arrival, cell.core.tenure.epoch)
            with suppress(Refused):  # too many follow it: the client asks again
                if not entry.state.is_terminal:
                    cell.core.hub.follow(turn.turn_id, ear)
                ear.push(cell.core.news(entry))

        try:
            cell.intake.accept(client.submission(), durable)
        except DualPathError as error:
            ear.push(Refusal(client.key, error))

    def take_cancel(self, client: "Client") -> None:
        if self._holds(self.take_cancel, client):
            return
        assert self.cell is not None
        cell = self.cell
        try:
            entry = cell.find(idempotency_key=client.key)
        except Rejected:
            return  # it never came here
        self.world.hit(Fault.TURN_CANCELLED, entry.state.value)
        state = cell.settle.cancel(entry.turn.turn_id).state
        cell.core.journal.append(
            entry.turn.turn_id, lambda: self.world.note(Event.CANCEL_TOLD, client.key, state.value)
        )


def submission_of(client: "Client", tokens: tuple[int, ...], context: tuple[BlockKey, int]) -> Submission:
    """What a client sends, every time the same for one key."""
    return Submission(
        idempotency_key=client.key,
        session_id=client.session_id,
        context_key=context[0],
        context_tokens=context[1],
        tokens=tokens,
        max_new_tokens=client.max_new_tokens,
        deadline_s=client.deadline_s,
    )
