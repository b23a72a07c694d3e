"""Emulated group leaders: Hello, reports that fetch, and an answer to each plan at once.

A PE leader answers with one progress (prefill done; the hits are read if its side reads), a DE leader with the commit:
4 tokens and one new block. Answers of what came together leave together, and each with a report that opens the fetch
again, unless the last report is younger than the gap our agents keep; then the report follows when the gap is over.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.control.load import BLOCK_TOKENS, NEW_TOKENS, PROMPT_TOKENS, SHAPES, Load
from benchmarks.control.wire import Connection

from dualpath.v1 import agents_pb2 as pb
from dualpath.v1 import turns_pb2

HBM_TOKENS = 4_000_000
WORK = "/dualpath.v1.Agents/Work"
QUIET_SHARE = 0.8  # of report_s: a leader with nothing new reports that often
FRAMES, FRAME_REPORT, FRAME_PROGRESS, FRAME_COMMIT = b"\x0a", b"\x12", b"\x1a", b"\x22"


@dataclass(slots=True)
class Seen:
    """What the leaders saw, to be held against what the clients saw."""

    pe_plans: Counter[str] = field(default_factory=Counter)
    de_plans: Counter[str] = field(default_factory=Counter)
    acks: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)  # cancel, stale, drain: none of them is due
    messages_up: int = 0
    messages_down: int = 0


class Leader:
    """One group."""

    def __init__(self, fleet: "Fleet", connection: Connection, group_id: str, role: int, engines: int) -> None:
        self._fleet = fleet
        self._role = role
        self.connection = connection
        self._group_id = group_id
        self._stream = connection.open(WORK, self._take)
        self._assignment = 0
        self._report_seq = 0
        self.reported_at_s = 0.0
        self.report_is_due = False
        self.welcomed = False
        node = f"{group_id}-n0"
        names = [f"{group_id}-e{number}" for number in range(engines)]
        self._hello = pb.Hello(
            protocol_version=1,
            cell=fleet.load.cell,
            group_id=group_id,
            role=role,  # type: ignore[arg-type]
            nodes=[pb.NodeInfo(node_id=node, address=f"{node}:7800", buffer_bytes=1 << 40)],
            engines=[pb.EngineCapacity(engine_id=name, node_id=node, hbm_tokens=HBM_TOKENS) for name in names],
            layout_hash="bench",
            layout="bench",
            model_name="bench",
            model_revision="1",
            namespace="bench",
            agent_epoch=1,
            block_tokens=BLOCK_TOKENS,
            tokens_max=1_000_000,
        )
        # an engine that ends each turn at once is always empty when it reports
        self._loads = pb.LoadReport(
            engines=[pb.EngineLoad(engine_id=name, free_hbm_tokens=HBM_TOKENS) for name in names],
            nodes=[pb.NodeLoad(node_id=node)],
            fetch=True,
        ).SerializeToString()

    def say_hello(self) -> None:
        self._stream.send(pb.FromGroupBatch(frames=[pb.FromGroup(hello=self._hello)]).SerializeToString())

    def report(self, now_s: float) -> bytes:
        """The frame of a report that fetches."""
        self._report_seq += 1
        self.reported_at_s, self.report_is_due = now_s, False
        head = pb.LoadReport(report_seq=self._report_seq, seen=self._assignment).SerializeToString()
        self._fleet.expect_report(self, now_s + self._fleet.quiet_s)
        return frame(FRAME_REPORT, head + self._loads)

    def send(self, frames: bytes) -> None:
        self._fleet.seen.messages_up += 1
        self._stream.send(frames)

    def _take(self, message: bytes) -> None:
        self._fleet.seen.messages_down += 1
        answers = bytearray()
        for item in pb.ToGroupBatch.FromString(message).frames:
            match item.WhichOneof("frame"):
                case "plan":
                    answers += self._answer(item.plan)
                case "commit_ack":
                    self._fleet.seen.acks[item.commit_ack.attempt.turn_id] += 1
                case "welcome":
                    self.welcomed = True
                    self._fleet.quiet_s = QUIET_SHARE * item.welcome.report_s
                    self.report_is_due = True
                case other:
                    self._fleet.seen.others[str(other)] += 1
        now_s = self._fleet.now_s()
        if answers or self.report_is_due:
            if now_s >= self.reported_at_s + self._fleet.load.report_gap_s:
                answers += self.report(now_s)
            elif not self.report_is_due:
                self.report_is_due = True
                self._fleet.expect_report(self, self.reported_at_s + self._fleet.load.report_gap_s)
        if answers:
            self.send(bytes(answers))

    def _answer(self, plan: pb.Plan) -> bytes:
        self._assignment = max(self._assignment, plan.assignment)
        turn_id = plan.turn_id.encode()
        attempt = b"\x0a" + sized(b"\x0a" + sized(turn_id) + b"\x10" + varint(plan.attempt))
        if self._role == pb.ROLE_PREFILL:
            self._fleet.seen.pe_plans[plan.turn_id] += 1
            read_done = b"\x18\x01" if plan.read_side == turns_pb2.READ_SIDE_PE else b""
            return frame(FRAME_PROGRESS, attempt + b"\x10\x06" + read_done + b"\x20\x01")
        self._fleet.seen.de_plans[plan.turn_id] += 1
        return frame(FRAME_COMMIT, attempt + self._fleet.result_of(plan))


class Fleet:
    """All leaders, and when each has to report next."""

    def __init__(self, load: Load, now_s: Callable[[], float], on_plan: Callable[[pb.Plan], None]) -> None:
        self.load = load
        self.now_s = now_s
        self.seen = Seen()
        self.quiet_s = 1.0
        self._on_plan = on_plan
        self._reports: list[tuple[float, int]] = []
        self._number_of: dict[Leader, int] = {}
        self._result = turns_pb2.TurnResult(
            tokens=range(100, 100 + NEW_TOKENS),
            end_reason="length",
            context_tokens=load.context_tokens + BLOCK_TOKENS,
            hit_tokens=load.context_tokens,
            miss_tokens=PROMPT_TOKENS,
        ).SerializeToString()
        pe_groups, de_groups, engines = SHAPES[load.engines]
        roles = [("pe", pb.ROLE_PREFILL)] * pe_groups + [("de", pb.ROLE_DECODE)] * de_groups
        self.leaders = [
            Leader(self, Connection(load.host, load.port), f"{name}{number:03}", role, engines)
            for number, (name, role) in enumerate(roles)
        ]
        self._number_of = {leader: number for number, leader in enumerate(self.leaders)}

    def expect_report(self, leader: Leader, at_s: float) -> None:
        heapq.heappush(self._reports, (at_s, self._number_of[leader]))

    @property
    def next_report_s(self) -> float:
        return self._reports[0][0] if self._reports else float("inf")

    def send_reports(self, now_s: float) -> None:
        """The reports whose time has come; a leader that has reported since it was noted down waits for its next."""
        while self._reports and self._reports[0][0] <= now_s:
            leader = self.leaders[heapq.heappop(self._reports)[1]]
            if leader.report_is_due or now_s >= leader.reported_at_s + self.quiet_s:
                leader.send(leader.report(now_s))

    def result_of(self, plan: pb.Plan) -> bytes:
        """The fields `result` and `new_keys` of a commit."""
        self._on_plan(plan)
        if plan.session_id.startswith("context"):
            keys = context_keys(int(plan.session_id.removeprefix("context")), self.load.blocks)
        else:
            keys = [bytes.fromhex(plan.turn_id)[:16].rjust(16, b"\x00") * 2]
        result = self._result + b"\x1a" + sized(keys[-1])
        return b"\x12" + sized(result) + b"".join([b"\x1a" + sized(key) for key in keys])


def context_keys(context: int, blocks: int) -> list[bytes]:
    """Keys of the blocks of a context, from its root on."""
    return [f"context {context:06} block {number:010}".encode()[:32].ljust(32) for number in range(blocks)]


def frame(tag: bytes, body: bytes) -> bytes:
    """One entry of FromGroupBatch.frames; entries laid end to end are a batch."""
    return FRAMES + sized(tag + sized(body))


def sized(body: bytes) -> bytes:
    size = len(body)
    return (bytes((size,)) if size < 128 else varint(size)) + body


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
