"""One run: schedulers, leaders, clients and a store in virtual time, with the faults of one seed's weather.

Until the weather heals, things go wrong. Then what is down comes back, nothing new goes wrong, and every turn must find
its end.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from dualpath.model.errors import Broken
from dualpath.model.ids import GroupId
from dualpath.model.turn import Plan, Role, TurnState
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.service.messages import AttemptKey
from dualpath.simulator.chaos.clients import Client, Session
from dualpath.simulator.chaos.history import Event, Run, Stored
from dualpath.simulator.chaos.leaders import HBM_TOKENS, Leader, Work, read_group
from dualpath.simulator.chaos.looks import look
from dualpath.simulator.chaos.loop import ChaosLoop
from dualpath.simulator.chaos.network import Network
from dualpath.simulator.chaos.process import ATTEMPTS_MAX, BOUNDS, STORE_LEASE_S, Process, Stream
from dualpath.simulator.chaos.store import Truth
from dualpath.simulator.chaos.weather import Fault, Weather, weather_of
from dualpath.simulator.machine.timeline import Timeline

TURNS = 5
END_S = 120.0  # a run that lasts longer has lost something
LOOK_S = 0.45
LINGER_S = 0.6  # after the last end: late frames still come, and must change nothing
LINGER_HELD_S = 1.0
RESTART_MAX_S = 0.8  # until a scheduler that died is started again
STORE_DOWN_MAX_S = 0.8
DURATIONS_S = {"read": (0.01, 0.06), "prefill": (0.02, 0.15), "decode": (0.05, 0.3)}


class World:
    """Joins the parts of one run."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.timeline = Timeline()
        quiet = not weather.frame_p
        self.run = Run(weather.seed, weather.calm, quiet, ATTEMPTS_MAX, BOUNDS.lease_s, weather.clock_rate, HBM_TOKENS)
        self.chance = random.Random(f"world {weather.seed}")
        self.client_chance = random.Random(f"clients {weather.seed}")
        self.is_healed = False
        self.facts = 0  # compared while the run went on
        self.network = Network(self.timeline, random.Random(f"net {weather.seed}"), weather.frame_p, self.hit)
        store_chance = random.Random(f"store {weather.seed}")
        self.truth = Truth(self.timeline, store_chance, weather, self.run.entries, self.hit)
        self.processes: list[Process] = []
        self.leaders = [
            Leader(self, GroupId(f"{role.value[0]}{at}"), role, random.Random(f"{role.value} {at} {weather.seed}"))
            for role, groups in ((Role.PREFILL, weather.prefill_groups), (Role.DECODE, weather.decode_groups))
            for at in range(groups)
        ]
        self._group = {leader.group_id: leader for leader in self.leaders}
        self._works: dict[tuple[AttemptKey, str, str], Work] = {}
        self._ids = 0
        self._marks = 0
        self._opened = 0
        self._waiting: list[Client] = []  # calm runs send one turn at a time
        self._open_clients = 0

    # what the parts ask for

    def turn_id(self) -> str:
        self._ids += 1
        return f"t{self._ids}"

    def note(self, event: Event, *fields: Any) -> None:
        self.run.entries.append((self.timeline.now_s, event, *fields))

    def hit(self, fault: Fault, phase: str) -> None:
        self.run.hits[fault, phase] += 1
        self.note(Event.FAULT, fault, phase)

    def breach(self, name: str, text: str) -> None:
        self.note(Event.BREACH, name, text)

    def fail(self, text: str) -> None:
        """The service raised what it must never raise."""
        self.breach("no_broken_law", text)

    def serving(self) -> Process | None:
        """Whoever took over last, as a name server would say; a frozen one still takes connections."""
        return next((process for process in reversed(self.processes) if process.is_serving), None)

    def is_poison(self, key: str) -> bool:
        promise = self.run.promises.get(key)
        return promise is not None and promise.poison

    def duration_s(self, phase: str) -> float:
        return self.chance.uniform(*DURATIONS_S[phase])

    def took_over(self) -> None:
        """Another scheduler serves from here on: a leader may be linked to one that does no more."""
        for leader in self.leaders:
            leader.relink()

    def died(self, process: Process) -> None:
        """A scheduler's process is gone: its streams and its clients notice."""
        now_s, at = self.timeline.now_s, self.timeline.at
        for stream in tuple(process.streams):
            at(now_s + self.chance.uniform(0.0, 0.2), _break, stream)
        for client in tuple(process.clients):
            client.lost(process)
        self.took_over()
        if not any(other.alive for other in self.processes) and not self.timeline.is_stopped:
            at(now_s + self.chance.uniform(0.05, RESTART_MAX_S), self._start_process)

    def _start_process(self, _: object = None) -> None:
        """The same name may take over at once, another one waits for the lease."""
        self._opened += 1
        owner = f"s{self._opened if self.chance.random() < 0.5 else 0}"
        self.processes.append(Process(self, owner, random.Random(f"{owner} {self._opened} {self.weather.seed}")))

    # how plans are carried out

    def work_of(self, plan: Plan, key: AttemptKey, group: GroupId) -> Work:
        """What the pair does together; a side that gets its plan again starts anew, and so must its partner."""
        name = (key, plan.pair.pe, plan.pair.de)
        work = self._works.get(name)
        if work is None or group in work.takers:
            work = self._works[name] = Work(plan, key)
        return work

    def read_done(self, work: Work) -> None:
        self._step(work, read_group(work.plan), "read", self._read_done)

    def prefilled(self, work: Work) -> None:
        self._step(work, work.plan.pair.pe_group, "prefill", self._prefilled)

    def decoded(self, work: Work) -> None:
        self._step(work, work.plan.pair.de_group, "decode", self._decoded)

    def _step(self, work: Work, group: GroupId, phase: str, then: Callable[[Work, Leader], None]) -> None:
        """The end of a phase, by the leader that carries it out, if it still does."""
        leader = self._group[group]
        if leader.attempts.get(work.key) is not work:
            for other in work.takers:
                if other != group and self._group[other].attempts.get(work.key) is work:
                    self._group[other].wait_for_partner(work.key, phase)
            return
        if not leader.is_awake:
            self.timeline.at(leader.wakes_at_s, lambda _: self._step(work, group, phase, then))
            return
        if self.weather.unruly_p and self.chance.random() < self.weather.unruly_p / 6:
            invalid = self.chance.random() < 0.1
            self.hit(Fault.HANDBACK, phase)
            leader.hand_back(work.key, "invalid" if invalid else "overloaded")
            return
        then(work, leader)

    def _read_done(self, work: Work, leader: Leader) -> None:
        leader.progress(work.key, TurnState.PREFILLING, read_done=True)
        self.timeline.at(self.timeline.now_s + self.duration_s("prefill"), self.prefilled, work)

    def _prefilled(self, work: Work, leader: Leader) -> None:
        leader.finish_prefill(work.key)
        de = self._group[work.plan.pair.de_group]
        if de.attempts.get(work.key) is work:
            de.progress(work.key, TurnState.DECODING)
            self.timeline.at(self.timeline.now_s + self.duration_s("decode"), self.decoded, work)

    def _decoded(self, work: Work, leader: Leader) -> None:
        self._marks += 1
        leader.commit(work, self._marks)

    # faults that come by plan

    def _strike(self, item: tuple[Fault, int, float]) -> None:
        if self.is_healed:
            return
        fault, pick, lasts_s = item
        process, leader = self.serving(), self._pick(pick)
        match fault:
            case Fault.SCHEDULER_CRASH | Fault.SCHEDULER_FREEZE | Fault.CRASH_AFTER_WRITE if process is None:
                return
            case Fault.SCHEDULER_CRASH if process is not None:
                self._hit_states(fault, process)
                process.crash()
            case Fault.SCHEDULER_FREEZE if process is not None:
                self._hit_states(fault, process)
                self._freeze(process, lasts_s)
            case Fault.CRASH_AFTER_WRITE:
                self.truth.crash_next = True
            case Fault.STORE_RESTARTS:
                self.hit(fault, "")
                self.truth.restart(min(lasts_s, STORE_DOWN_MAX_S))
            case Fault.LEADER_CRASH:
                self._hit_leader(fault, leader)
                leader.crash(lasts_s)
            case Fault.LEADER_PAUSE:
                self._hit_leader(fault, leader)
                leader.pause(lasts_s)
            case Fault.CUT_UP | Fault.CUT_DOWN | Fault.CUT_BOTH:
                self._hit_leader(fault, leader)
                leader.cut(up=fault is not Fault.CUT_DOWN, down=fault is not Fault.CUT_UP, seconds=lasts_s)
            case Fault.STREAM_BREAK if leader.stream is not None:
                self._hit_leader(fault, leader)
                leader.break_stream(leader.stream)
            case Fault.LEADER_DRAIN:
                self._hit_leader(fault, leader)
                leader.drain()
                self.timeline.at(self.timeline.now_s + 0.5 + lasts_s, lambda _: leader.crash(0.2))
            case Fault.ENGINE_LEAVES:
                self._hit_leader(fault, leader)
                leader.lose_engine()
                self.timeline.at(self.timeline.now_s + lasts_s, lambda _: leader.regain_engine())

    def _pick(self, number: int) -> Leader:
        """Three times of four somebody who has something to lose."""
        busy = [leader for leader in self.leaders if leader.attempts] if number % 4 else []
        found = busy or self.leaders
        return found[number // 4 % len(found)]

    def _freeze(self, process: Process, lasts_s: float) -> None:
        """Stand still; another scheduler may take over meanwhile, and some leaders look for it."""
        process.freeze()
        for leader in self.leaders:
            leader.relink()
            if leader.stream is not None and self.chance.random() < 0.5:
                stream = leader.stream
                at_s = self.timeline.now_s + self.chance.uniform(0.5, 1.5)
                self.timeline.at(at_s, _break, stream)
        if not any(other.alive and other is not process for other in self.processes):
            self._start_process()

        def thaw(_: object) -> None:
            process.thaw()
            for leader in self.leaders:
                leader.relink()

        self.timeline.at(self.timeline.now_s + lasts_s, thaw)

    def _hit_states(self, fault: Fault, process: Process) -> None:
        if process.cell is not None:
            for state in sorted({entry.state.value for entry in process.cell.core.ledger.open_turns()}) or ["idle"]:
                self.hit(fault, state)

    def _hit_leader(self, fault: Fault, leader: Leader) -> None:
        """Count the fault for each state in which the turns of this group stand."""
        process = self.serving()
        states = set()
        if process is not None and process.cell is not None:
            for entry in process.cell.core.ledger.open_turns():
                if any(seat is not None and seat.group_id == leader.group_id for seat in (entry.pe, entry.de)):
                    states.add(f"{leader.role.value}/{entry.state.value}")
        for state in sorted(states) or [f"{leader.role.value}/idle"]:
            self.hit(fault, state)

    def _heal(self, _: object) -> None:
        if self.is_healed:
            return
        self.is_healed = True
        self.network.heal()
        self.truth.heal()
        for leader in self.leaders:
            leader.regain_engine()
        self.note(Event.HEALED)

    # clients

    def _plan_clients(self) -> None:
        """Sessions of a few turns each, in bursts; the next turn of a session comes when the one before has ended."""
        chance, number = self.client_chance, 0
        session_number = 0
        while number < self.weather.turns:
            session_number += 1
            session = Session(session_number)
            turns = min(chance.choice((1, 2, 3)), self.weather.turns - number)
            clients: list[Client] = []
            for _ in range(turns):
                number += 1
                follow = _Next(self, clients)
                clients.append(Client(self, number, session, follow))
            self._open_clients += turns
            if self.weather.calm:
                self._waiting += clients
            else:
                self.timeline.at(0.1 + chance.choice((0.2, 0.6, 1.2)) * chance.random(), clients[0].start)
        if self.weather.calm:
            self.timeline.at(0.5, self._waiting.pop(0).start)

    def client_ended(self, rest: list[Client]) -> None:
        """One turn has ended: go on with its session, or in a calm run with whoever waits."""
        self._open_clients -= 1
        following = self._waiting if self.weather.calm else rest
        if not self.weather.calm:
            rest.pop(0)
        if following:
            client = following.pop(0) if self.weather.calm else following[0]
            self.timeline.at(self.timeline.now_s + self.client_chance.uniform(0.02, 0.3), client.start)

    # looks, and the end

    def _look(self, _: object) -> None:
        process = self.serving()
        now_s = self.timeline.now_s
        if process is not None and process.cell is not None and not process.frozen:
            since_s = now_s - process.opened_at_s
            facts, breaches = look(process.cell.core.ledger, settled=since_s > BOUNDS.lease_s + 3 * BOUNDS.sweep_s)
            self.facts += facts
            for name, text in breaches:
                self.breach(name, text)
            if not self._open_clients and all(leader.is_well for leader in self.leaders):
                self._heal(None)  # nobody is left whom a fault could hurt
            is_over = self.is_healed or self.weather.calm
            if is_over and not self._open_clients and not process.cell.core.ledger.open_count:
                self.note(Event.IDLE)
                self.timeline.at(now_s + LINGER_S, self._linger)
                return
        if now_s >= END_S:
            self.run.crash = f"open after {END_S:g} s: {self.state()}"
            self.timeline.stop()
            return
        self.timeline.at(now_s + LOOK_S, self._look)

    def _linger(self, _: object) -> None:
        """A plan that came twice may have started a leader once more: it finds no partner and gives up."""
        held = any(leader.attempts for leader in self.leaders)
        self.timeline.at(self.timeline.now_s + (LINGER_HELD_S if held else 0.0), lambda _: self.timeline.stop())

    def state(self) -> str:
        process = self.serving()
        if process is None or process.cell is None:
            return "no scheduler serves"
        turns = [f"{e.turn.turn_id} {e.state} {e.attempt}" for e in process.cell.core.ledger.open_turns()]
        return f"{self._open_clients} clients wait; open turns: {', '.join(turns) or 'none'}"

    async def live(self, stopped: asyncio.Event) -> None:
        """From the first Hello to the moment when nothing is open any more."""
        self._start_process()
        at = self.timeline.at
        for number, leader in enumerate(self.leaders):
            at(0.02 + 0.01 * number, leader.connect)
            at(0.3 + 0.01 * number, leader.keep_reporting)
        for at_s, fault, pick, lasts_s in self.weather.planned:
            at(at_s, self._strike, (fault, pick, lasts_s))
        at(0.2, self._look)
        at(self.weather.heal_s, self._heal)
        self._plan_clients()
        await stopped.wait()
        await self._close()

    async def _close(self) -> None:
        """Read what is left in the store, as the next scheduler would."""
        self.run.ended_at_s = self.timeline.now_s
        await asyncio.gather(*(process.end() for process in self.processes))
        self.timeline.now_s += 2 * STORE_LEASE_S  # the last scheduler's lease is over
        tenure = await self.truth.store.acquire("reader", STORE_LEASE_S)
        stored = await self.truth.store.load(tenure)
        try:
            ledger = Ledger.rebuild(stored, now_s=0.0)
        except Broken as error:
            self.run.crash = self.run.crash or f"what is stored does not hold together: {error!r}"
            return
        self.run.stored_records = dict(stored.records)
        for turn_id, entry in ledger.turns.items():
            result = entry.result
            self.run.stored[turn_id] = Stored(
                turn_id=turn_id,
                key=entry.turn.idempotency_key,
                arrival=entry.turn.arrival,
                state=entry.state.value,
                attempt=entry.attempt,
                reason=result.end_reason.value if result is not None else "",
                mark=result.tokens[0] if result is not None and result.tokens else 0,
                message=result.message if result is not None else "",
            )


class _Next:
    """What follows the end of a session's turn."""

    def __init__(self, world: World, clients: list[Client]) -> None:
        self._world = world
        self._clients = clients

    def __call__(self, client: Client) -> None:
        self._world.client_ended(self._clients)


def run_seed(seed: int, turns: int = TURNS) -> Run:
    """One run; everything in it follows from the seed."""
    world = World(weather_of(seed, turns))
    loop = ChaosLoop(world.timeline, world.state)
    try:
        loop.run_until_complete(world.live(loop.stopped))
    except Exception as error:  # whatever the service raises where it raises nothing: that is what we look for
        world.run.crash = world.run.crash or f"{error!r} at {world.timeline.now_s:.3f} s"
    finally:
        loop.close()
    world.note(Event.LOOKED, world.facts)
    return world.run


def _break(stream: Stream) -> None:
    stream.leader.break_stream(stream)
