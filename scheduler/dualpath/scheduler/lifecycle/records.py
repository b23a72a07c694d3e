"""A turn's record: all that is known of it at its present attempt, and its bytes in the store.

    header length u32 | header JSON | prompt token ids u32 x n | hit keys 32 x m | result token ids u32 x k | crc32

The JSON holds the small fields and n, m, k. The checksum shows a damaged record when a scheduler starts (law I5: a turn
is never silently dropped).
"""

import json
import struct
import zlib
from dataclasses import dataclass, field, replace

from dualpath.model.errors import Broken
from dualpath.model.ids import (
    BLOCK_KEY_BYTES,
    BlockKey,
    EngineId,
    GroupId,
    NodeId,
    SessionId,
    TurnId,
)
from dualpath.model.turn import EndReason, ReadSide, Turn, TurnResult, TurnState

DECISIONS_MAX = 64  # decisions kept for Explain; the oldest go first
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class DecisionNote:
    """One decision about a turn, for Explain: what was chosen, why, and the numbers it saw."""

    attempt: int
    after_s: float  # since acceptance
    step: str  # accepted, prefill, group, decode, read_side, returned, ended
    choice: str
    reason: str
    inputs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine given to a turn, with where it is."""

    engine_id: EngineId
    node_id: NodeId
    group_id: GroupId


@dataclass(slots=True)
class TurnEntry:
    """A turn and where it stands. Changed only by the ledger."""

    turn: Turn
    state: TurnState
    attempt: int = 1
    accepted_at_s: float = 0.0  # scheduler clock; a restarted scheduler counts anew
    pe: Seat | None = None
    de: Seat | None = None
    de_group: GroupId | None = None  # chosen in phase 1, before the DE is
    read_side: ReadSide | None = None
    assignment: int = 0  # number of the plan; 0 before there is one
    agent_epochs: dict[str, int] = field(default_factory=dict)  # group -> epoch its plan was made for
    prefill_done: bool = False
    result: TurnResult | None = None
    ended_at_s: float = 0.0
    decisions: list[DecisionNote] = field(default_factory=list)

    def note(self, decision: DecisionNote) -> None:
        self.decisions.append(decision)
        del self.decisions[:-DECISIONS_MAX]

    def encode(self) -> bytes:
        turn, result = self.turn, self.result
        header = {
            "turn_id": turn.turn_id,
            "session_id": turn.session_id,
            "arrival": turn.arrival,
            "max_new_tokens": turn.max_new_tokens,
            "hit_tokens": turn.hit_tokens,
            "forced_tokens": turn.forced_tokens,
            "stop_tokens": turn.stop_tokens,
            "deadline_s": None if turn.deadline_at_s is None else turn.deadline_at_s - self.accepted_at_s,
            "idempotency_key": turn.idempotency_key,
            "state": self.state,
            "attempt": self.attempt,
            "pe": self.pe and (self.pe.engine_id, self.pe.node_id, self.pe.group_id),
            "de": self.de and (self.de.engine_id, self.de.node_id, self.de.group_id),
            "de_group": self.de_group,
            "read_side": self.read_side,
            "assignment": self.assignment,
            "agent_epochs": self.agent_epochs,
            "prefill_done": self.prefill_done,
            "decisions": [_decision_fields(decision) for decision in self.decisions],
            "result": result and _result_header(result),
            "counts": [len(turn.tokens), len(turn.hit_keys), len(result.tokens) if result else 0],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        body = b"".join(
            (
                _LENGTH.pack(len(text)),
                text,
                struct.pack(f"<{len(turn.tokens)}I", *turn.tokens),
                *turn.hit_keys,
                struct.pack(f"<{len(result.tokens)}I", *result.tokens) if result else b"",
            )
        )
        return body + _LENGTH.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, record: bytes, *, now_s: float) -> "TurnEntry":
        """Rebuild an entry; times count from `now_s`. Raises Broken for a damaged record."""
        body, checksum = record[: -_LENGTH.size], record[-_LENGTH.size :]
        if len(record) < 2 * _LENGTH.size or _LENGTH.unpack(checksum)[0] != zlib.crc32(body):
            raise Broken(f"turn record of {len(record)} bytes fails its checksum", reason="RECORD_DAMAGED")
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        header = json.loads(body[_LENGTH.size : at])
        prompt, keys, generated = header["counts"]
        tokens = struct.unpack_from(f"<{prompt}I", body, at)
        at += 4 * prompt
        hit_keys = tuple(BlockKey(body[i : i + BLOCK_KEY_BYTES]) for i in _starts(at, keys))
        at += BLOCK_KEY_BYTES * keys
        turn = Turn(
            turn_id=TurnId(header["turn_id"]),
            session_id=SessionId(header["session_id"]),
            arrival=header["arrival"],
            tokens=tokens,
            max_new_tokens=header["max_new_tokens"],
            hit_tokens=header["hit_tokens"],
            hit_keys=hit_keys,
            forced_tokens=header["forced_tokens"],
            stop_tokens=tuple(header["stop_tokens"]),
            deadline_at_s=None if header["deadline_s"] is None else now_s + header["deadline_s"],
            idempotency_key=header["idempotency_key"],
        )
        if hit_keys:
            turn = replace(turn, context_key=hit_keys[-1])
        result = _result(header["result"], struct.unpack_from(f"<{generated}I", body, at))
        return cls(
            turn=turn,
            state=TurnState(header["state"]),
            attempt=header["attempt"],
            accepted_at_s=now_s,
            pe=_seat(header["pe"]),
            de=_seat(header["de"]),
            de_group=header["de_group"],
            read_side=header["read_side"] and ReadSide(header["read_side"]),
            assignment=header["assignment"],
            agent_epochs=header["agent_epochs"],
            prefill_done=header["prefill_done"],
            result=result,
            ended_at_s=now_s if result else 0.0,
            decisions=[DecisionNote(*fields) for fields in header["decisions"]],
        )


def _decision_fields(note: DecisionNote) -> tuple[object, ...]:
    """In the order of DecisionNote's fields; written for every change of a turn, so without dataclasses.asdict."""
    return (note.attempt, note.after_s, note.step, note.choice, note.reason, note.inputs)


def _starts(at: int, keys: int) -> range:
    return range(at, at + BLOCK_KEY_BYTES * keys, BLOCK_KEY_BYTES)


def _seat(fields: list[str] | None) -> Seat | None:
    return (fields and Seat(EngineId(fields[0]), NodeId(fields[1]), GroupId(fields[2]))) or None


def _result_header(result: TurnResult) -> dict[str, object]:
    return {
        "end_reason": result.end_reason,
        "context_key": result.context_key.hex(),
        "context_tokens": result.context_tokens,
        "hit_tokens": result.hit_tokens,
        "miss_tokens": result.miss_tokens,
        "valid_context_tokens": result.valid_context_tokens,
        "message": result.message,
    }


def _result(header: dict[str, object] | None, tokens: tuple[int, ...]) -> TurnResult | None:
    if header is None:
        return None
    fields = dict(header)
    key = BlockKey(bytes.fromhex(str(fields.pop("context_key"))))
    reason = EndReason(str(fields.pop("end_reason")))
    return TurnResult(tokens=tokens, end_reason=reason, context_key=key, **fields)  # type: ignore[arg-type]
