"""A turn's record: all that is known of it at its present attempt, and its bytes in the store.

    prompt  counts u32 x 2 | prompt token ids u32 x n | hit keys 32 x m | crc32      written once
    record  header length u32 | header JSON | result token ids u32 x k | crc32      written anew as the turn moves on

The checksums show a damaged record when a scheduler starts (law I5: a turn is never silently dropped).
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from dualpath.model.errors import Broken
from dualpath.model.ids import (
    BLOCK_KEY_BYTES,
    ROOT_KEY,
    BlockKey,
    EngineId,
    GroupId,
    NodeId,
    SessionId,
    TurnId,
)
from dualpath.model.turn import EndReason, ReadSide, Turn, TurnResult, TurnState

ARRIVAL_BITS = 44  # of a key in a line; as many turns are never accepted
DECISIONS_MAX = 64  # decisions kept for Explain; the oldest go first
_LENGTH = struct.Struct("<I")
_COUNTS = struct.Struct("<II")
_TOKENS = "I"  # array type code: 4 bytes here, as the format wants


NO_INPUTS: Mapping[str, float] = {}


class DecisionNote(NamedTuple):
    """One decision about a turn, for Explain: what was chosen, why, and the numbers it saw."""

    attempt: int
    after_s: float  # since acceptance
    step: str  # accepted, prefill, group, decode, read_side, returned, ended
    choice: str
    reason: str
    inputs: Mapping[str, float] = NO_INPUTS


class Seat(NamedTuple):
    """An engine given to a turn, with where it is."""

    engine_id: EngineId
    node_id: NodeId
    group_id: GroupId


class Held(NamedTuple):
    """An open record of the ledger: so much of a resource, reserved at a holder."""

    key: str
    holder: str
    amount: int


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
    prefill_done: bool = False  # not in the record: the PE's own record is closed then
    promoted: bool = False  # it stands before every turn of the fair order, since too many have gone before it
    told_again: bool = False  # not in the record: the PE got the plan of this attempt more than once
    result: TurnResult | None = None
    ended_at_s: float = 0.0
    notes: list[DecisionNote] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)  # what the attempt has reserved, by resource
    # what the store knows (lifecycle.unstored)
    is_stored: bool = field(default=False, compare=False)
    stored_line: str | None = field(default=None, compare=False)
    stored_held: dict[str, Held] = field(default_factory=dict, compare=False)
    notes_made: int = field(default=0, compare=False)
    notes_stored: int = field(default=-1, compare=False)
    _away: bytes = field(default=b"", compare=False)  # the notes of an ended turn, as they are in the record

    @property
    def line_key(self) -> int:
        """Where it stands in any line: by its tag in the fair order, then by arrival."""
        turn = self.turn
        return turn.arrival if self.promoted else turn.tag << ARRIVAL_BITS | turn.arrival

    def note(self, decision: DecisionNote) -> None:
        self.notes_made += 1
        self.notes.append(decision)
        if len(self.notes) > DECISIONS_MAX:
            del self.notes[0]

    @property
    def is_stored_whole(self) -> bool:
        """Whether what the store last took of this turn is where it stands now."""
        return self.notes_stored == self.notes_made

    @property
    def decisions(self) -> list[DecisionNote]:
        """The newest DECISIONS_MAX, oldest first."""
        return [DecisionNote(*fields) for fields in orjson.loads(self._away)] if self._away else self.notes

    def put_away(self) -> None:
        """The turn has ended: keep its notes as bytes. Tens of thousands of ended turns are kept for questions."""
        self._away = orjson.dumps(self.notes, default=_list_of)
        self.notes = []

    def header(self) -> bytes:
        """Everything but tokens, as JSON."""
        turn, result = self.turn, self.result
        fields = {
            "turn_id": turn.turn_id,
            "session_id": turn.session_id,
            "arrival": turn.arrival,
            "max_new_tokens": turn.max_new_tokens,
            "hit_tokens": turn.hit_tokens,
            "forced_tokens": turn.forced_tokens,
            "stop_tokens": turn.stop_tokens,
            "deadline_s": None if turn.deadline_at_s is None else turn.deadline_at_s - self.accepted_at_s,
            "idempotency_key": turn.idempotency_key,
            "tenant": turn.tenant,
            "priority": turn.priority,
            "tag": turn.tag,
            "promoted": self.promoted,
            "state": self.state,
            "attempt": self.attempt,
            "pe": self.pe,
            "de": self.de,
            "de_group": self.de_group,
            "read_side": self.read_side,
            "assignment": self.assignment,
            "agent_epochs": self.agent_epochs,
            "decisions": orjson.Fragment(self._away) if self._away else self.notes,
            "result": result and _result_header(result),
        }
        return orjson.dumps(fields, default=_list_of)

    def encode(self, header: bytes | None = None) -> bytes:
        """The record as it is now; `header`, where it is at hand already."""
        text = header or self.header()
        tokens = _token_bytes(self.result.tokens) if self.result else b""
        body = b"".join((_LENGTH.pack(len(text)), text, tokens))
        return body + _LENGTH.pack(zlib.crc32(body))

    @classmethod
    def decode(cls, record: bytes, prompt: bytes, *, now_s: float) -> "TurnEntry":
        """Rebuild an entry; times count from `now_s`. Raises Broken for a damaged record."""
        body = _checked(record, "turn record")
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        header = orjson.loads(body[_LENGTH.size : at])
        tokens, hit_keys = decode_prompt(prompt)
        deadline_s = header["deadline_s"]
        turn = Turn(
            turn_id=TurnId(header["turn_id"]),
            session_id=SessionId(header["session_id"]),
            arrival=header["arrival"],
            tokens=tokens,
            max_new_tokens=header["max_new_tokens"],
            context_key=hit_keys[-1] if hit_keys else ROOT_KEY,
            hit_tokens=header["hit_tokens"],
            hit_keys=hit_keys,
            forced_tokens=header["forced_tokens"],
            stop_tokens=tuple(header["stop_tokens"]),
            deadline_at_s=None if deadline_s is None else now_s + deadline_s,
            idempotency_key=header["idempotency_key"],
            tenant=header["tenant"],
            priority=header["priority"],
            tag=header["tag"],
        )
        result = _result(header["result"], _tokens_of(body[at:]))
        read_side = header["read_side"]
        return cls(
            turn=turn,
            state=TurnState(header["state"]),
            attempt=header["attempt"],
            accepted_at_s=now_s,
            pe=_seat(header["pe"]),
            de=_seat(header["de"]),
            de_group=header["de_group"],
            read_side=ReadSide(read_side) if read_side else None,
            assignment=header["assignment"],
            promoted=header["promoted"],
            agent_epochs=header["agent_epochs"],
            result=result,
            ended_at_s=now_s if result else 0.0,
            notes=[DecisionNote(*fields) for fields in header["decisions"]],
        )


def encode_prompt(turn: Turn) -> bytes:
    """Miss tokens and hit keys."""
    counts = _COUNTS.pack(len(turn.tokens), len(turn.hit_keys))
    body = b"".join((counts, _token_bytes(turn.tokens), *turn.hit_keys))
    return body + _LENGTH.pack(zlib.crc32(body))


def decode_prompt(prompt: bytes) -> tuple[tuple[int, ...], tuple[BlockKey, ...]]:
    """Miss tokens and hit keys; raises Broken for a damaged prompt."""
    body = _checked(prompt, "prompt of a turn")
    tokens, keys = _COUNTS.unpack_from(body)
    at = _COUNTS.size + 4 * tokens
    starts = range(at, at + BLOCK_KEY_BYTES * keys, BLOCK_KEY_BYTES)
    return _tokens_of(body[_COUNTS.size : at]), tuple([BlockKey(body[i : i + BLOCK_KEY_BYTES]) for i in starts])


def _checked(record: bytes, what: str) -> bytes:
    body, checksum = record[: -_LENGTH.size], record[-_LENGTH.size :]
    if len(record) < 2 * _LENGTH.size or _LENGTH.unpack(checksum)[0] != zlib.crc32(body):
        raise Broken(f"{what} of {len(record)} bytes fails its checksum", reason="RECORD_DAMAGED")
    return body


def _token_bytes(tokens: tuple[int, ...]) -> bytes:
    numbers = array(_TOKENS, tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _tokens_of(data: bytes) -> tuple[int, ...]:
    numbers = array(_TOKENS, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


def _list_of(value: object) -> object:
    """For the JSON writer, which knows lists but no tuples with names."""
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no place in a record")


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
