"""The real scheduler as the control plane: `scheduler.service` and the memory store, in virtual time.

Groups say Hello, report and ask as agents do; plans come back over their links. What one event of the machine says is
said in one breath: submissions first, then the rest in order, as they would come over separate streams.
"""

import asyncio
from array import array
from collections.abc import Callable

from dualpath.model.ids import ROOT_KEY, BlockKey, EngineId, GroupId, Namespace, NodeId, SessionId
from dualpath.model.layout import BLOCK_TOKENS
from dualpath.model.load import EngineCapacity, EngineLoad, LoadReport, NodeInfo, NodeLoad
from dualpath.model.turn import EndReason, Plan, ReadSide, Role, TurnResult, TurnState
from dualpath.scheduler.lifecycle.engines import GroupHello
from dualpath.scheduler.policy.registry import Policy
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.cell import Cell
from dualpath.scheduler.service.intake import Submission
from dualpath.scheduler.service.messages import AttemptKey, GroupMessage, SendPlan
from dualpath.scheduler.stores.memory import MemoryStore
from dualpath.simulator.control.virtual_loop import VirtualLoop
from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.machine.turns import SimTurn

FOREVER_S = 1e9
BOUNDS = ServiceBounds(lease_s=FOREVER_S, deadline_s=FOREVER_S, sweep_s=FOREVER_S, retention_s=FOREVER_S)


class _TimelineClock:
    """The service's Clock on virtual time."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def monotonic_s(self) -> float:
        return self._timeline.now_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Ids:
    def __init__(self) -> None:
        self._count = 0

    def turn_id(self) -> str:
        self._count += 1
        return str(self._count)


class _Link:
    """What the scheduler says to one group; a turn starts when its decode group hears the plan."""

    def __init__(self, group: GroupId, heard: Callable[[Plan], None]) -> None:
        self._group = group
        self._heard = heard

    def send(self, message: GroupMessage) -> None:
        if isinstance(message, SendPlan) and message.plan.pair.de_group == self._group:
            self._heard(message.plan)

    def close(self) -> None:
        pass


class ServiceControl:
    """Drives one machine with the scheduler itself; `committed` hears of each turn's end."""

    def __init__(
        self, machine: Machine, policy: Policy, limits: PolicyLimits, *, committed: Callable[[SimTurn], None]
    ) -> None:
        self._machine = machine
        self._policy = policy
        self._limits = limits
        self._committed = committed
        self._cell: Cell
        self._turns: dict[str, SimTurn] = {}
        self._contexts: dict[int, tuple[BlockKey, int]] = {}
        self._submitted: list[SimTurn] = []
        self._said: list[Callable[[], None]] = []
        self._asking: dict[int, None] = {}
        self._reports = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._groups = [GroupId(f"g{number}") for number in range(machine.groups)]
        self._nodes = [NodeId(f"n{node}") for node in range(len(machine.nics))]
        per_node = machine.shape.engines_per_node
        self._engine_ids = [
            EngineId(f"n{engine // per_node}/g{engine % per_node}") for engine in range(machine.engines)
        ]
        self._number_of = {engine_id: number for number, engine_id in enumerate(self._engine_ids)}
        machine.control = self
        machine.notify_reads = True

    async def open(self) -> None:
        """Start the scheduler and let all groups say Hello."""
        clock = _TimelineClock(self._machine.timeline)
        self._cell = await Cell.open(
            MemoryStore(clock),
            cell="simulated",
            owner="simulated",
            clock=clock,
            ids=_Ids(),
            policy=self._policy,
            limits=self._limits,
            bounds=BOUNDS,
            store_lease_s=FOREVER_S,
        )
        for number, group in enumerate(self._groups):
            self._cell.leases.join(self._hello(number), (), _Link(group, self._begin))

    async def run(self) -> None:
        await self._cell.run(store_lease_s=FOREVER_S)

    # what the machine and the sessions say

    def submit(self, turn: SimTurn) -> None:
        turn.submitted_at_s = self._machine.timeline.now_s
        self._turns[turn.turn_id] = turn
        self._submitted.append(turn)

    def fetch(self, group: int) -> None:
        self._asking[group] = None
        self._said.append(lambda: self._report(group, fetch=True))

    def close_fetch(self, group: int) -> None:
        self._asking.pop(group, None)
        self._said.append(lambda: self._report(group, fetch=False))

    def read_done(self, turn: SimTurn) -> None:
        side = turn.pe if turn.side is ReadSide.PE else turn.de
        self._said.append(lambda: self._progress(side, turn, TurnState.PREFILLING, read_done=True))

    def prefill_done(self, turn: SimTurn) -> None:
        self._said.append(lambda: self._progress(turn.pe, turn, TurnState.DECODING, prefill_done=True))

    def commit(self, turn: SimTurn) -> None:
        self._said.append(lambda: self._commit(turn))
        self._committed(turn)

    @property
    def waiting_turns(self) -> int:
        ledger = self._cell.core.ledger
        return sum(len(line) for line in ledger.lines())

    def pump(self, _: None = None) -> None:
        """Say what the last event gave reason to say. Commits first: the next turn of a session builds on them."""
        said, self._said = self._said, []
        submitted, self._submitted = self._submitted, []
        for turn in submitted:
            task = asyncio.get_running_loop().create_task(self._submit(turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for say in said:
            say()

    def settle_fetches(self) -> None:
        """After everything has settled: groups whose fetch brought turns will ask again in their own time."""
        groups = self._cell.core.ledger.groups
        for number in sorted(self._asking):
            if not groups[self._groups[number]].fetch_open:
                del self._asking[number]
                self._machine.served(number)

    # what is said

    async def _submit(self, turn: SimTurn) -> None:
        key, tokens = self._contexts.get(turn.session, (ROOT_KEY, 0))
        entry = await self._cell.intake.submit(
            Submission(
                idempotency_key=turn.turn_id,
                session_id=SessionId(f"s{turn.session}"),
                context_key=key if tokens else ROOT_KEY,
                context_tokens=tokens,
                tokens=(0,) * (turn.prompt_tokens - tokens),
                max_new_tokens=turn.max_new_tokens,
            )
        )
        assert entry.turn.hit_tokens == turn.hit_tokens, "the service and the workload agree on what hits"

    def _report(self, group: int, *, fetch: bool) -> None:
        self._reports += 1
        hello = self._hello(group)
        self._cell.leases.report(
            LoadReport(
                group_id=hello.group_id,
                agent_epoch=hello.agent_epoch,
                report_seq=self._reports,
                seen=self._cell.core.ledger.last_assignment,
                engines=tuple(EngineLoad(engine.engine_id, 0, 0, engine.hbm_tokens) for engine in hello.engines),
                nodes=tuple(NodeLoad(node.node_id, 0) for node in hello.nodes),
            ),
            fetch=fetch,
        )

    def _progress(
        self, engine: int, turn: SimTurn, state: TurnState, *, read_done: bool = False, prefill_done: bool = False
    ) -> None:
        group = self._groups[self._machine.group_of[engine]]
        key = AttemptKey(turn.turn_id, 1)
        self._cell.settle.progress(group, key, state, read_done=read_done, prefill_done=prefill_done)

    def _commit(self, turn: SimTurn) -> None:
        """All whole blocks of prompt and generation are in storage by now."""
        entry = self._cell.core.ledger.turns[turn.turn_id]
        blocks = (turn.prompt_tokens + turn.max_new_tokens) // BLOCK_TOKENS
        new = tuple(_block(turn.session, at) for at in range(len(entry.turn.hit_keys), blocks))
        keys = (*entry.turn.hit_keys, *new)
        self._contexts[turn.session] = (keys[-1] if keys else ROOT_KEY, blocks * BLOCK_TOKENS)
        group = self._groups[self._machine.group_of[turn.de]]
        self._cell.settle.commit(
            group, AttemptKey(turn.turn_id, 1), TurnResult((0,) * turn.max_new_tokens, EndReason.LENGTH), new
        )
        del self._turns[turn.turn_id]

    def _begin(self, plan: Plan) -> None:
        turn = self._turns[plan.turn.turn_id]
        turn.pe, turn.de = self._number_of[plan.pair.pe], self._number_of[plan.pair.de]
        turn.side = plan.read_side
        turn.planned_at_s = self._machine.timeline.now_s
        entry = self._cell.core.ledger.turns[plan.turn.turn_id]
        placed = next(note for note in entry.decisions if note.step == "prefill")
        turn.placed_at_s = turn.submitted_at_s + placed.after_s
        self._machine.begin(turn)

    def _hello(self, number: int) -> GroupHello:
        machine = self._machine
        engines = [engine for engine in range(machine.engines) if machine.group_of[engine] == number]
        nodes = sorted({machine.node_of[engine] for engine in engines})
        return GroupHello(
            group_id=self._groups[number],
            role=Role.PREFILL if number < machine.prefill_groups else Role.DECODE,
            agent_epoch=1,
            nodes=tuple(NodeInfo(self._nodes[node], f"n{node}:1", 1 << 40) for node in nodes),
            engines=tuple(
                EngineCapacity(self._engine_ids[e], self._nodes[machine.node_of[e]], machine.costs.hbm_tokens)
                for e in engines
            ),
            namespace=Namespace("default/simulated/1/fp8/l"),
            block_tokens=BLOCK_TOKENS,
            tokens_max=1 << 40,
            layout_hash="l",
            layout="simulated",
            model_name="simulated",
            model_revision="1",
        )


def _block(session: int, at: int) -> BlockKey:
    """A key that is unique to the session and the place."""
    return BlockKey(array("Q", [session + 1, at + 1, 0, 0]).tobytes())


def run_service(machine: Machine, control: ServiceControl, *, state: Callable[[], str]) -> None:
    """Run the machine under the real scheduler until the timeline is stopped; raises Broken(DEADLOCK) if it starves."""
    loop = VirtualLoop(machine.timeline, before_jump=control.settle_fetches, after_event=control.pump, state=state)
    try:
        loop.run_until_complete(_run(machine, control, loop.stopped))
    finally:
        loop.close()


async def _run(machine: Machine, control: ServiceControl, stopped: asyncio.Event) -> None:
    await control.open()
    machine.start()
    control.pump()
    scheduler = asyncio.create_task(control.run())
    end = asyncio.create_task(stopped.wait())
    await asyncio.wait((scheduler, end), return_when=asyncio.FIRST_COMPLETED)
    for task in (scheduler, end):
        task.cancel()
    outcomes = await asyncio.gather(scheduler, end, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
