"""Emulated clients: a few SubmitMany streams, and the times of every turn.

A turn is known by its number, which is its idempotency key and its session id: a plan names the session, so the leaders
know which turn they see before the client has heard of it.
"""

import random
from dataclasses import dataclass, field

from benchmarks.control.leaders import context_keys, sized
from benchmarks.control.load import NEW_TOKENS, PROMPT_TOKENS, Load
from benchmarks.control.wire import Connection

from dualpath.v1 import turns_pb2 as pb

SUBMIT_MANY = "/dualpath.v1.Turns/SubmitMany"
SUBMISSIONS_MAX = 256  # of one message
CONTEXT = "context"
ENDED = (pb.TURN_STATE_COMMITTED, pb.TURN_STATE_FAILED, pb.TURN_STATE_CANCELLED)


@dataclass(slots=True)
class Times:
    """Instants per turn, by its number; None: has not happened.

    due_at_s  when the turn was to be sent: what the generator is late counts as latency (open loop)
    """

    due_at_s: list[float] = field(default_factory=list)
    sent_at_s: list[float] = field(default_factory=list)
    accepted_at_s: list[float | None] = field(default_factory=list)
    planned_at_s: list[float | None] = field(default_factory=list)
    ended_at_s: list[float | None] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def begin(self, due_at_s: float, now_s: float) -> int:
        """The number of a new turn."""
        self.due_at_s.append(due_at_s)
        self.sent_at_s.append(now_s)
        self.accepted_at_s.append(None)
        self.planned_at_s.append(None)
        self.ended_at_s.append(None)
        self.ends.append(0)
        return len(self.ends) - 1


class Clients:
    """Submits turns over `client_streams` connections."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.times = Times()
        self.errors: list[str] = []
        self.contexts_ready = 0
        self.ended = 0
        self.connections = [Connection(load.host, load.port) for _ in range(load.client_streams)]
        self._streams = [connection.open(SUBMIT_MANY, self._take) for connection in self.connections]
        self._now_s = 0.0
        self._next = 0
        chance = random.Random(load.seed)
        self._bodies = [
            pb.SubmitTurn(
                context_key=context_keys(context, load.blocks)[-1] if load.blocks else b"",
                context_tokens=load.context_tokens,
                tokens=[chance.randrange(32_000) for _ in range(PROMPT_TOKENS)],
                max_new_tokens=NEW_TOKENS,
                forced_tokens=True,
            ).SerializeToString()
            for context in range(load.contexts)
        ]

    @property
    def under_way(self) -> int:
        return len(self.times.ends) - self.ended

    def at(self, now_s: float) -> None:
        """What comes in from here on came at this instant."""
        self._now_s = now_s

    def prepare(self) -> None:
        """One turn per context, whose commit makes its blocks known."""
        turns = [
            pb.SubmitTurn(
                idempotency_key=f"{CONTEXT}{context}",
                session_id=f"{CONTEXT}{context}",
                tokens=[7] * (self._load.context_tokens or 1),
                max_new_tokens=1,
            )
            for context in range(self._load.contexts)
        ]
        for turn in turns:
            self._streams[0].send(pb.SubmitBatch(turns=[turn]).SerializeToString())

    def submit(self, due_at_s: list[float], now_s: float) -> None:
        """Send one turn per instant. Those of one call share messages, one for each stream at most but for size."""
        streams = len(self._streams)
        messages = [bytearray() for _ in range(streams)]
        counts = [0] * streams
        for due in due_at_s:
            number = self.times.begin(due, now_s)
            key = str(number).encode()
            body = self._bodies[number % len(self._bodies)]
            turn = b"\x0a" + sized(key) + b"\x12" + sized(key) + body
            at = number % streams
            messages[at] += b"\x0a" + sized(turn)
            counts[at] += 1
            if counts[at] == SUBMISSIONS_MAX:
                self._streams[at].send(bytes(messages[at]))
                messages[at].clear()
                counts[at] = 0
        for stream, message in zip(self._streams, messages, strict=True):
            if message:
                stream.send(bytes(message))

    def _take(self, message: bytes) -> None:
        times, now_s = self.times, self._now_s
        for event in pb.EventBatch.FromString(message).events:
            key = event.idempotency_key
            if event.HasField("refused"):
                self.errors.append(f"turn {key} refused: {event.refused.reason} {event.refused.message}")
                continue
            if key.startswith(CONTEXT):
                self.contexts_ready += event.state == pb.TURN_STATE_COMMITTED
                continue
            number = int(key)
            if times.accepted_at_s[number] is None:
                times.accepted_at_s[number] = now_s
            if event.state in ENDED:
                times.ends[number] += 1
                times.ended_at_s[number] = now_s
                self.ended += 1
                if event.state != pb.TURN_STATE_COMMITTED or event.attempt != 1:
                    self.errors.append(f"turn {key} ended in state {event.state}, attempt {event.attempt}")
