"""What deciding costs, in process: the scheduler's own ledger and policy, without streams, store or messages.

Cells as large as the load's (8, 64, 1,152 engines), with no turn waiting but the new ones or 50,000 more. A decision is
what the service makes of one turn:

    pe  look at the FIFO, the engines and their read queues, and give turns to PEs (Algorithm 1). All PEs are one group:
        the most engines one decision can see. `pe_of_8` has the same engines in groups of 8.
    de  the spread over DE groups (phase 1), the place within a group of 8 (phase 2), and the read side

Times are per turn placed. `policy` is the pure functions, `snapshot` what the ledger gathers for them, `booking` what
the ledger changes afterwards (no store, no notes). A decision, `decision_us`, is policy and snapshot. Each round places
ROUND_TURNS turns and ends as many, so that loads move as they do in service and nothing can be kept from before.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.control.load import BLOCK_TOKENS, NEW_TOKENS, PROMPT_TOKENS, SHAPES

from dualpath.model.ids import BlockKey, EngineId, GroupId, Namespace, NodeId, SessionId, TurnId
from dualpath.model.load import EngineCapacity, NodeInfo
from dualpath.model.turn import EndReason, Role, Turn, TurnResult
from dualpath.scheduler.lifecycle.engines import GroupEntry, GroupHello
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import DecisionNote, Seat
from dualpath.scheduler.lifecycle.table import Event
from dualpath.scheduler.policy.decode import assign_decode, spread_to_groups
from dualpath.scheduler.policy.prefill import assign_prefill
from dualpath.scheduler.policy.read_side import choose_read_side
from dualpath.scheduler.policy.snapshot import PolicyLimits

ROUND_TURNS = 8
WAITING = (0, 50_000)
BLOCKS = 8
HIT_KEYS = tuple(BlockKey(bytes([number]) * 32) for number in range(BLOCKS))
TOKENS = tuple(range(PROMPT_TOKENS))
PROMPT = BLOCKS * BLOCK_TOKENS + PROMPT_TOKENS
NOTE = DecisionNote(1, 0.0, "bench", "", "")
RESULT = TurnResult(tuple(range(NEW_TOKENS)), EndReason.LENGTH)
FIRST_TURNS_PER_ENGINE = 4  # load that stands before anything is measured


@dataclass(slots=True)
class Spans:
    """Seconds per round."""

    snapshot: list[float] = field(default_factory=list)
    policy: list[float] = field(default_factory=list)
    booking: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def add(self, parts: dict[str, float], turns: int) -> None:
        self.snapshot.append(parts.get("snapshot", 0.0))
        self.policy.append(parts.get("policy", 0.0))
        self.booking.append(parts.get("booking", 0.0))
        self.turns.append(turns)

    def figures(self) -> dict[str, float]:
        """us per turn placed: medians over the rounds."""

        def per_turn(spans: list[float]) -> float:
            rounds = [1e6 * span / turns for span, turns in zip(spans, self.turns, strict=True) if turns]
            return round(statistics.median(rounds), 2)

        decided = [a + b for a, b in zip(self.policy, self.snapshot, strict=True)]
        return {
            "decision_us": per_turn(decided),
            "policy_us": per_turn(self.policy),
            "snapshot_us": per_turn(self.snapshot),
            "booking_us": per_turn(self.booking),
            "turns_per_round": round(statistics.mean(self.turns), 1),
        }


class Cell:
    """A ledger with its groups, and turns that move through it as the service moves them (dispatch.py).

    pe_group_size  engines of one PE group
    waiting        turns in the FIFO (pe) or in the DE groups' queues (de), beside the new ones
    """

    def __init__(self, engines: int, *, pe_group_size: int | None, decode: bool, waiting: int) -> None:
        pe_groups, de_groups, size = SHAPES[engines]
        pe_size = pe_group_size or pe_groups * size
        # the engines a decision is about; the other role only has to be there
        pes, des = (pe_groups * size, de_groups * size) if decode else (engines, de_groups * size)
        self.ledger = Ledger()
        self._clock = time.perf_counter
        self._decode = decode
        room = FIRST_TURNS_PER_ENGINE * (PROMPT + NEW_TOKENS)
        # with turns waiting, every engine is full: a round places what the turns of the round before left
        self._hbm_tokens = room if decode and waiting else 1_000_000_000
        beta_tokens = FIRST_TURNS_PER_ENGINE * PROMPT - 1
        self.limits = PolicyLimits(beta_tokens=beta_tokens if waiting and not decode else 1 << 50)
        self.pe_groups = self._join(Role.PREFILL, pes, min(pe_size, pes))
        self.de_groups = self._join(Role.DECODE, des, size)
        self._count = 0
        self._running: deque[TurnId] = deque()
        first = FIRST_TURNS_PER_ENGINE * (des if decode else pes)
        for _ in range(first):
            self._accept()
        self._to_engines()
        for _ in range(waiting):
            self._accept()
        if decode:
            self._to_engines()

    def round_prefill(self) -> tuple[dict[str, float], int]:
        """New turns come, as many have ended, and each PE group fetches."""
        ledger = self.ledger
        self._end(ROUND_TURNS)
        for _ in range(ROUND_TURNS):
            self._accept()
        parts = {"snapshot": 0.0, "policy": 0.0, "booking": 0.0}
        placed = 0
        for group in self._rotated(self.pe_groups):
            if not len(ledger.prefill_fifo):
                break
            at_s = self._clock()
            snapshot = ledger.prefill_snapshot(group, rotation=self._count)
            looked_s = self._clock()
            decision = assign_prefill(snapshot, self.limits)
            decided_s = self._clock()
            for placement in decision.placements:
                seat = Seat(placement.engine_id, group.node_of[placement.engine_id], group.group_id)
                ledger.place_prefill(placement.turn_id, seat, NOTE)
            booked_s = self._clock()
            self._add(parts, looked_s - at_s, decided_s - looked_s, booked_s - decided_s)
            placed += len(decision.placements)
            if not self._waits_for_room and placed >= ROUND_TURNS:
                break
        self._to_engines()
        return parts, placed

    def round_decode(self) -> tuple[dict[str, float], int]:
        """New turns come to the decode queue, as many have ended, and the DE groups that have room fetch."""
        self._end(ROUND_TURNS)
        for _ in range(ROUND_TURNS):
            self._accept()
        self._place_all()
        parts = {"snapshot": 0.0, "policy": 0.0, "booking": 0.0}
        self._spread(parts)
        placed = sum(self._fetch_decode(group, parts) for group in self._touched())
        return parts, placed

    # the steps of dispatch

    def _place_all(self) -> None:
        group = self.pe_groups[0]
        seats = [Seat(e.engine_id, e.node_id, group.group_id) for e in group.hello.engines]
        while (head := self.ledger.prefill_fifo.head) is not None:
            self.ledger.place_prefill(head.turn_id, seats[head.arrival % len(seats)], NOTE)

    def _spread(self, parts: dict[str, float]) -> None:
        ledger = self.ledger
        at_s = self._clock()
        waiting, views = ledger.decode_queue_waiting(), ledger.group_views()
        looked_s = self._clock()
        placements = spread_to_groups(waiting, views, rotation=self._count)
        decided_s = self._clock()
        for placement in placements:
            ledger.choose_group(placement.turn_id, placement.group_id, NOTE)
        self._add(parts, looked_s - at_s, decided_s - looked_s, self._clock() - decided_s)

    def _fetch_decode(self, group: GroupEntry, parts: dict[str, float]) -> int:
        ledger = self.ledger
        at_s = self._clock()
        snapshot = ledger.decode_snapshot(group, rotation=self._count)
        looked_s = self._clock()
        decision = assign_decode(snapshot, self.limits)
        self._add(parts, looked_s - at_s, self._clock() - looked_s, 0.0)
        for placement in decision.placements:
            at_s = self._clock()
            pe = ledger.turns[placement.turn_id].pe
            assert pe is not None, "a turn in a DE group's queue has a PE"
            de = Seat(placement.engine_id, group.node_of[placement.engine_id], group.group_id)
            pe_group = ledger.groups[pe.group_id]
            queues = {
                pe.node_id: ledger.read_queue_tokens(pe_group, pe.node_id),
                de.node_id: ledger.read_queue_tokens(group, de.node_id),
            }
            number = ledger.last_assignment + 1
            looked_s = self._clock()
            side = choose_read_side(pe.node_id, de.node_id, queues, hit_tokens=PROMPT - PROMPT_TOKENS, rotation=number)
            decided_s = self._clock()
            ledger.plan(placement.turn_id, de, side.side, assignment=number, notes=(NOTE, NOTE))
            self._add(parts, looked_s - at_s, decided_s - looked_s, self._clock() - decided_s)
            self._running.append(placement.turn_id)
        return len(decision.placements)

    def _touched(self) -> list[GroupEntry]:
        """DE groups that a fetch may give something: those in whose queue a turn waits and that lost or got one."""
        queues = self.ledger.group_queues
        if self._waits_for_room:
            names = {seat.group_id for seat in self._freed}
            return [group for group in self.de_groups if group.group_id in names]
        return [g for g in self.de_groups if (queue := queues.get(g.group_id)) is not None and len(queue)]

    # the rest of a turn's life, not measured

    def _accept(self) -> None:
        self._count += 1
        turn = Turn(
            turn_id=TurnId(f"{self._count:032x}"),
            session_id=SessionId("bench"),
            arrival=self._count,
            tokens=TOKENS,
            max_new_tokens=NEW_TOKENS,
            context_key=HIT_KEYS[-1],
            hit_tokens=BLOCKS * BLOCK_TOKENS,
            hit_keys=HIT_KEYS,
            idempotency_key=f"{self._count}",
        )
        self.ledger.accept(turn, now_s=0.0)

    def _to_engines(self) -> None:
        """Whatever has a PE goes on to a DE, as far as there is room."""
        parts: dict[str, float] = {"snapshot": 0.0, "policy": 0.0, "booking": 0.0}
        if not self._running and not self._decode:
            self._place_first()
        if self._decode:
            self._place_all()
        self._spread(parts)
        for group in self.de_groups:
            queue = self.ledger.group_queues.get(group.group_id)
            if queue is not None and len(queue):
                self._fetch_decode(group, parts)

    def _place_first(self) -> None:
        for group in self.pe_groups:
            share = FIRST_TURNS_PER_ENGINE * len(group.hello.engines)
            for number in range(share):
                head = self.ledger.prefill_fifo.head
                assert head is not None
                engine = group.hello.engines[number % len(group.hello.engines)]
                self.ledger.place_prefill(head.turn_id, Seat(engine.engine_id, engine.node_id, group.group_id), NOTE)

    def _end(self, count: int) -> None:
        self._freed: list[Seat] = []
        for _ in range(min(count, len(self._running))):
            turn_id = self._running.popleft()
            de = self.ledger.turns[turn_id].de
            assert de is not None, "a running turn has a DE"
            self._freed.append(de)
            self.ledger.end(turn_id, Event.COMMITTED, RESULT, NOTE, now_s=0.0)
            self.ledger.drop(turn_id)

    @property
    def _waits_for_room(self) -> bool:
        return self._hbm_tokens < 1_000_000_000 or self.limits.beta_tokens < 1 << 50

    def _rotated(self, groups: list[GroupEntry]) -> list[GroupEntry]:
        """The groups whose engines have room come first: dispatch looks at no others (lifecycle/fetches.py)."""
        if not self._waits_for_room:
            first = self._count % len(groups)
            return groups[first:] + groups[:first]
        ledger, beta_tokens = self.ledger, self.limits.beta_tokens
        return [
            group
            for group in groups
            if any(ledger.sum_of("prefill_tokens", e.engine_id) <= beta_tokens for e in group.hello.engines)
        ]

    def _join(self, role: Role, engines: int, size: int) -> list[GroupEntry]:
        groups = []
        for start in range(0, engines, size):
            name = f"{role.value}{start:05}"
            nodes = [NodeId(f"{name}-n{number}") for number in range(-(-size // 8))]
            hello = GroupHello(
                group_id=GroupId(name),
                role=role,
                agent_epoch=1,
                nodes=tuple(NodeInfo(node, f"{node}:1", 1 << 40, None, None) for node in nodes),
                engines=tuple(
                    EngineCapacity(EngineId(f"{name}-e{number}"), nodes[number // 8], self._hbm_tokens)
                    for number in range(min(size, engines - start))
                ),
                namespace=Namespace("bench"),
                block_tokens=BLOCK_TOKENS,
                tokens_max=1 << 30,
                layout_hash="bench",
                layout="bench",
                model_name="bench",
                model_revision="1",
            )
            group = GroupEntry(hello, rank=self.ledger.loads.next_rank())
            self.ledger.loads.join(group)
            groups.append(group)
        return groups

    @staticmethod
    def _add(parts: dict[str, float], snapshot: float, policy: float, booking: float) -> None:
        parts["snapshot"] += snapshot
        parts["policy"] += policy
        parts["booking"] += booking


def measure(
    say: Callable[[str], None], *, rounds: int = 300, engines: tuple[int, ...] = tuple(SHAPES)
) -> dict[str, object]:
    """`decision_us.<pe|de>.<engines>.<waiting>`, and the parts of each under `decision_parts`."""
    decisions: dict[str, dict[str, dict[str, float]]] = {}
    parts: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for kind in ("pe", "pe_of_8", "de"):
        for count in engines:
            for waiting in WAITING:
                found = _measure_one(kind, count, waiting, rounds)
                say(f"{kind} decision, {count} engines, {waiting} waiting: {found['decision_us']} us")
                decisions.setdefault(kind, {}).setdefault(str(count), {})[str(waiting)] = found["decision_us"]
                parts.setdefault(kind, {}).setdefault(str(count), {})[str(waiting)] = found
    return {"decision_us": decisions, "decision_parts": parts}


def _measure_one(kind: str, engines: int, waiting: int, rounds: int) -> dict[str, float]:
    cell = Cell(engines, pe_group_size=8 if kind == "pe_of_8" else None, decode=kind == "de", waiting=waiting)
    one_round = cell.round_decode if kind == "de" else cell.round_prefill
    for _ in range(rounds // 10):
        one_round()
    spans = Spans()
    for _ in range(rounds):
        spans.add(*one_round())
    return spans.figures()
