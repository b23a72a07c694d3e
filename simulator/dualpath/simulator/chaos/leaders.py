"""Emulated group leaders: they hold plans, take a while for each phase, and tell the scheduler as real agents do.

A commit is kept and sent again until it is acknowledged or called stale. What a leader holds dies with its process.
"""

import random
from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any

from dualpath.model.ids import ROOT_KEY, BlockKey, EngineId, GroupId, Namespace, NodeId
from dualpath.model.load import EngineCapacity, EngineLoad, LoadReport, NodeInfo, NodeLoad
from dualpath.model.turn import EndReason, Plan, ReadSide, Role, TurnResult, TurnState
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.service.messages import AttemptKey, SendCancel, SendCommitAck, SendDrain, SendPlan, SendStale
from dualpath.simulator.chaos.history import Event
from dualpath.simulator.chaos.process import Stream
from dualpath.simulator.chaos.weather import Fault

if TYPE_CHECKING:
    from dualpath.simulator.chaos.world import World

BLOCK_TOKENS = 4
HBM_TOKENS = 72  # of a decode engine: the longest turn of a session, or two or three short ones
NODES = 2  # of a group, each with one engine
PARTNER_S = 0.8  # how long an agent waits for the other side before it hands the attempt back
WELCOME_S = 0.5
REPORT_GAP_S, REPORT_S = 0.1, 0.6
LIE_TOKENS = 1 << 20


class Work:
    """One plan, as the two groups carry it out together."""

    __slots__ = ("key", "plan", "started", "takers")

    def __init__(self, plan: Plan, key: AttemptKey) -> None:
        self.plan = plan
        self.key = key
        self.takers: dict[GroupId, None] = {}
        self.started = False


class Leader:
    """Rank 0 of one group; `agent_epoch` rises with each new process of that name."""

    def __init__(self, world: "World", group_id: GroupId, role: Role, chance: random.Random) -> None:
        self.world = world
        self.group_id = group_id
        self.role = role
        self.chance = chance
        self.agent_epoch = 1
        self.alive = True
        self.wakes_at_s = 0.0
        self.cut_up = self.cut_down = False
        self.stream: Stream | None = None
        self.attempts: dict[AttemptKey, Work] = {}
        self.unacked: dict[AttemptKey, tuple[Any, ...]] = {}
        self._cancelled: set[AttemptKey] = set()  # cancelled on this stream before their plan came; asked, never walked
        self._draining = False
        self._report_due = False
        self._report_seq = 0
        self._seen = 0
        self._linked = False
        self.nodes = tuple(NodeId(f"{group_id}-n{node}") for node in range(NODES))
        self.engines = tuple(
            EngineCapacity(EngineId(f"{node}/g{rank}"), node, HBM_TOKENS) for rank, node in enumerate(self.nodes)
        )
        self.engines_here = self.engines
        self._idle_loads = tuple(EngineLoad(engine.engine_id, 0, 0, HBM_TOKENS) for engine in self.engines)
        self._node_loads = tuple(NodeLoad(node, 0) for node in self.nodes)

    # being there

    @property
    def is_awake(self) -> bool:
        return self.alive and self.world.timeline.now_s >= self.wakes_at_s

    @property
    def is_well(self) -> bool:
        """Nothing that was done to it lasts."""
        return self.is_awake and not (self.cut_up or self.cut_down)

    def crash(self, down_s: float) -> None:
        """The process dies; its name comes back with a higher epoch."""
        if not self.alive:
            return
        self.alive = False
        for key in list(self.attempts):
            self._drop(key)
        self.unacked.clear()
        self._disconnect(tell=self.chance.random() < 0.6)
        self.world.timeline.at(self.world.timeline.now_s + down_s, self._come_back, self.agent_epoch)

    def _come_back(self, epoch: int) -> None:
        if self.alive or epoch != self.agent_epoch:
            return
        self.agent_epoch += 1
        self.alive, self._draining, self._seen, self._report_seq = True, False, 0, 0
        self.wakes_at_s = 0.0
        self.engines_here = self.engines
        self.connect(None)

    def pause(self, seconds: float) -> None:
        """Stand still; frames and timers wait."""
        self.wakes_at_s = max(self.wakes_at_s, self.world.timeline.now_s + seconds)
        self._link()
        self.world.timeline.at(self.wakes_at_s, lambda _: self._link())

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """A partition, one way or both; the stream does not outlive it."""
        self._set_cut(up, down)
        world = self.world
        stream = self.stream

        def heal(_: object) -> None:
            self._set_cut(False, False)
            if stream is not None:
                self.break_stream(stream)

        world.timeline.at(world.timeline.now_s + seconds, heal)

    def _set_cut(self, up: bool, down: bool) -> None:
        self.cut_up, self.cut_down = up, down
        if self.stream is not None:
            self.stream.up.cut, self.stream.down.cut = up, down
        self._link()

    def _link(self) -> None:
        """Note when the scheduler and this leader can hear each other, and when not."""
        stream = self.stream
        linked = (
            self.is_awake
            and stream is not None
            and stream.welcomed
            and stream.process is self.world.serving()
            and not (stream.process.frozen or self.cut_up or self.cut_down)
        )
        if linked is not self._linked:
            self._linked = linked
            self.world.note(Event.LINK, self.group_id, linked)

    def relink(self) -> None:
        """Something about the scheduler's side changed."""
        self._link()

    # the stream

    def connect(self, _: object) -> None:
        """Say Hello to whoever serves; try again until welcomed."""
        world = self.world
        if not self.alive or self.stream is not None:
            return
        if not self.is_awake:
            world.timeline.at(self.wakes_at_s, self.connect)
            return
        process = world.serving()
        if process is None:
            world.timeline.at(world.timeline.now_s + 0.1, self.connect)
            return
        stream = Stream(self, process, lambda: self.break_stream(stream))
        self.stream = stream
        self._cancelled.clear()
        running = tuple(dict.fromkeys((*self.attempts, *self.unacked)))
        world.network.carry(stream.up, "hello", process.take, (stream, ("hello", self._hello(), running)))
        world.timeline.at(world.timeline.now_s + WELCOME_S, self._unwelcomed, stream)

    def _unwelcomed(self, stream: Stream) -> None:
        if not stream.welcomed:
            self.break_stream(stream)

    def break_stream(self, stream: Stream) -> None:
        """Both ends notice, each in its own time; the scheduler sometimes never does."""
        if self.stream is stream:
            self._disconnect(tell=self.chance.random() < 0.7)
            if self.alive:
                self.world.timeline.at(self.world.timeline.now_s + self.chance.uniform(0.02, 0.1), self.connect)

    def _disconnect(self, *, tell: bool) -> None:
        stream, self.stream = self.stream, None
        if stream is not None and tell:
            delay_s = self.chance.uniform(0.0, 0.2)
            self.world.timeline.at(self.world.timeline.now_s + delay_s, stream.process.left, stream)
        self._link()

    def say(self, *frame: Any) -> None:
        """Up, if there is a stream; what is said without one is lost, but for commits.

        What is said between Hello and Welcome waits: the Hello has named attempts that may be over by now.
        """
        stream = self.stream
        if stream is not None and stream.welcomed:
            self.world.network.carry(stream.up, frame[0], stream.process.take, (stream, frame))
        elif stream is not None and frame[0] != "commit":
            stream.early.append(frame)

    def take(self, item: tuple[Stream, Any]) -> None:
        """A frame of the scheduler."""
        stream, message = item
        if not self.alive or stream is not self.stream:
            return
        if not self.is_awake:
            self.world.timeline.at(self.wakes_at_s, self.take, item)
            return
        match message:
            case SendPlan(plan):
                self._take_plan(plan)
            case SendCancel(key):
                self._cancelled.add(key)
                self.unacked.pop(key, None)
                self._drop(key)
            case SendCommitAck(key):
                self.unacked.pop(key, None)
            case SendStale(key):
                self.unacked.pop(key, None)
                self._drop(key)
            case SendDrain():
                self.drain()
            case ("welcome", _):
                self._welcome(stream)
            case None:
                self.break_stream(stream)
        self._report_soon()

    def _welcome(self, stream: Stream) -> None:
        if stream.welcomed:
            return
        stream.welcomed = True
        self._link()
        for frame in (*stream.early, *self.unacked.values()):
            self.say(*frame)
        if self._draining:
            self.say("draining")

    def drain(self) -> None:
        self._draining = True
        self.say("draining")

    def lose_engine(self) -> None:
        """A member left: a smaller group says Hello again, without what that engine worked on."""
        self.engines_here = self.engines[:1]
        kept = self.engines[0].engine_id
        for key, work in list(self.attempts.items()):
            pair = work.plan.pair
            if (pair.pe if self.role is Role.PREFILL else pair.de) != kept:
                self._drop(key)
        if self.stream is not None:
            self.break_stream(self.stream)

    def regain_engine(self) -> None:
        if len(self.engines_here) != len(self.engines):
            self.engines_here = self.engines
            if self.stream is not None:
                self.break_stream(self.stream)

    # reports

    def _report_soon(self) -> None:
        if not self._report_due and self.stream is not None and self.stream.welcomed:
            self._report_due = True
            self.world.timeline.at(self.world.timeline.now_s + REPORT_GAP_S, self._report, self.agent_epoch)

    def keep_reporting(self, _: object) -> None:
        """At least every REPORT_S, as long as the run goes on."""
        timeline = self.world.timeline
        if self.is_awake:
            self._link()
            if not self._report_due:
                self._report(self.agent_epoch)
        timeline.at(timeline.now_s + REPORT_S, self.keep_reporting)

    def _report(self, epoch: int) -> None:
        self._report_due = False
        if not self.is_awake or epoch != self.agent_epoch:
            return
        self._report_seq += 1
        lies = self.world.weather.lies and self.chance.random() < 0.5
        if lies:
            self.world.hit(Fault.REPORT_LIES, self.role.value)
            loads = tuple([EngineLoad(engine.engine_id, 0, 0, LIE_TOKENS) for engine in self.engines_here])
        else:
            loads = self._loads() if self.attempts else self._idle_loads[: len(self.engines_here)]
        report = LoadReport(
            group_id=self.group_id,
            agent_epoch=self.agent_epoch,
            report_seq=self._report_seq,
            seen=LIE_TOKENS if lies else self._seen,
            engines=loads,
            nodes=self._node_loads,
        )
        self.say("report", report, not self._draining)

    def _loads(self) -> tuple[EngineLoad, ...]:
        is_pe = self.role is Role.PREFILL
        turns: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for work in self.attempts.values():
            turn, pair = work.plan.turn, work.plan.pair
            engine_id = pair.pe if is_pe else pair.de
            turns[engine_id] += 1
            tokens[engine_id] += turn.prompt_tokens
            held[engine_id] += 0 if is_pe else turn.total_tokens_max
        ids = [engine.engine_id for engine in self.engines_here]
        return tuple([EngineLoad(of, turns[of], tokens[of], HBM_TOKENS - held[of]) for of in ids])

    # plans

    def _take_plan(self, plan: Plan) -> None:
        key = AttemptKey(plan.turn.turn_id, plan.attempt)
        if key in self._cancelled or key in self.attempts or key in self.unacked:
            return
        world, timeline = self.world, self.world.timeline
        pair = plan.pair
        if (pair.pe if self.role is Role.PREFILL else pair.de) not in {e.engine_id for e in self.engines_here}:
            self.say("handback", key, "peer_lost")
            return
        work = world.work_of(plan, key, self.group_id)
        self.attempts[key] = work
        self._seen = max(self._seen, plan.assignment)
        world.note(Event.PLAN_TAKEN, self.group_id, self.agent_epoch, *key_of(key))
        work.takers[self.group_id] = None
        if world.is_poison(plan.turn.idempotency_key) and self.role is Role.DECODE:
            timeline.at(timeline.now_s + 0.05, self._poisoned, (self.agent_epoch, key))
            return
        if len(work.takers) == 2 and not work.started:
            work.started = True
            if plan.turn.hit_tokens:
                timeline.at(timeline.now_s + world.duration_s("read"), world.read_done, work)
            else:
                timeline.at(timeline.now_s + world.duration_s("prefill"), world.prefilled, work)
        else:
            self.wait_for_partner(key, "start")

    def _poisoned(self, item: tuple[int, AttemptKey]) -> None:
        epoch, key = item
        if self.alive and epoch == self.agent_epoch and key in self.attempts:
            self.world.hit(Fault.POISON, f"attempt {key.attempt}")
            self.crash(self.chance.uniform(0.05, 0.3))

    def wait_for_partner(self, key: AttemptKey, phase: str) -> None:
        timeline = self.world.timeline
        timeline.at(timeline.now_s + PARTNER_S, self._partner_late, (self.agent_epoch, key, phase))

    def _partner_late(self, item: tuple[int, AttemptKey, str]) -> None:
        """The other side never came, or died half-way: give the attempt back."""
        epoch, key, phase = item
        work = self.attempts.get(key)
        if work is None or epoch != self.agent_epoch or not self.alive:
            return
        if not self.is_awake:
            self.world.timeline.at(self.wakes_at_s, self._partner_late, item)
            return
        if phase == "start" and work.started:
            return
        self.hand_back(key, "peer_lost")

    def hand_back(self, key: AttemptKey, reason: str) -> None:
        self._drop(key)
        self.say("handback", key, reason)
        self._report_soon()

    def progress(
        self, key: AttemptKey, state: TurnState, *, read_done: bool = False, prefill_done: bool = False
    ) -> None:
        self.say("progress", key, state, read_done, prefill_done)

    def finish_prefill(self, key: AttemptKey) -> None:
        self.progress(key, TurnState.PREFILLING, prefill_done=True)
        self._drop(key)
        self._report_soon()

    def commit(self, work: Work, mark: int) -> None:
        """All whole blocks are stored: the end of this attempt, kept until the scheduler has heard of it."""
        key, turn = work.key, work.plan.turn
        if turn.hit_tokens and self.chance.random() < self.world.weather.unruly_p / 4:
            self.world.hit(Fault.CONTEXT_LOST, f"attempt {key.attempt}")
            new_keys: tuple[BlockKey, ...] = ()
            result = TurnResult((mark,), EndReason.CONTEXT_LOST)
        else:
            blocks = (turn.prompt_tokens + turn.max_new_tokens) // BLOCK_TOKENS
            session = int(turn.session_id)
            new_keys = tuple(_block(session, at) for at in range(len(turn.hit_keys), blocks))
            keys = (*turn.hit_keys, *new_keys)
            result = TurnResult(
                (mark,) * turn.max_new_tokens,
                EndReason.LENGTH,
                context_key=keys[-1] if keys else ROOT_KEY,
                context_tokens=blocks * BLOCK_TOKENS,
            )
        self._drop(key)
        frame = ("commit", key, result, new_keys)
        self.unacked[key] = frame
        self.world.note(Event.COMMIT_SENT, self.group_id, self.agent_epoch, *key_of(key), mark)
        self.say(*frame)
        self._report_soon()

    def _drop(self, key: AttemptKey) -> None:
        if self.attempts.pop(key, None) is not None:
            self.world.note(Event.PLAN_LEFT, self.group_id, self.agent_epoch, *key_of(key))

    def _hello(self) -> GroupHello:
        named = {engine.node_id for engine in self.engines_here}
        return GroupHello(
            group_id=self.group_id,
            role=self.role,
            agent_epoch=self.agent_epoch,
            nodes=tuple(NodeInfo(node, f"{node}:1", 1 << 30) for node in self.nodes if node in named),
            engines=self.engines_here,
            namespace=Namespace("default/chaos/1/fp8/l"),
            block_tokens=BLOCK_TOKENS,
            tokens_max=1 << 20,
            layout_hash="l",
            layout="chaos",
            model_name="chaos",
            model_revision="1",
        )


def read_group(plan: Plan) -> GroupId:
    return plan.pair.pe_group if plan.read_side is ReadSide.PE else plan.pair.de_group


def key_of(key: AttemptKey) -> tuple[str, int]:
    return key.turn_id, key.attempt


def _block(session: int, at: int) -> BlockKey:
    """A key that is unique to the session and the place."""
    return BlockKey(array("Q", [session + 1, at + 1, 0, 0]).tobytes())
