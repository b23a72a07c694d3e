"""What a node tells its scheduler about an attempt, as plain values; leader and peer put them on the wire."""

from dataclasses import dataclass
from enum import StrEnum

from dualpath.model.ids import BlockKey, TurnId
from dualpath.model.turn import TurnResult, TurnState


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One try of one turn: what every message between agents names."""

    turn_id: TurnId
    attempt: int

    def __str__(self) -> str:
        return f"{self.turn_id}/{self.attempt}"


class HandbackReason(StrEnum):
    """Why an agent returns an attempt unfinished."""

    DRAINING = "draining"
    PEER_LOST = "peer_lost"
    READ_FAILED = "read_failed"
    ENGINE_FAILED = "engine_failed"
    INVALID = "invalid"  # no engine of this model can run the turn: another attempt would not help
    REFUSED = "refused"  # a bounded queue or buffer of this node had no room


@dataclass(frozen=True, slots=True)
class ProgressNote:
    key: AttemptKey
    state: TurnState
    read_done: bool = False
    prefill_done: bool = False


@dataclass(frozen=True, slots=True)
class CommitNote:
    key: AttemptKey
    result: TurnResult
    new_keys: tuple[BlockKey, ...] = ()


@dataclass(frozen=True, slots=True)
class HandbackNote:
    key: AttemptKey
    reason: HandbackReason
    message: str


Note = ProgressNote | CommitNote | HandbackNote


@dataclass(frozen=True, slots=True)
class Offer:
    """DE to PE: the DE buffer of this attempt is open as `region`; its first `hit_tokens` hold the hit KV already."""

    key: AttemptKey
    region: int
    region_bytes: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """PE to DE: the region holds the KV of the whole prompt."""

    key: AttemptKey
    first_token: int
    hit_tokens: int


class AbortReason(StrEnum):
    CANCELLED = "cancelled"
    CONTEXT_LOST = "context_lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PeerAbort:
    """Either way: this attempt goes no further. With CONTEXT_LOST, hit KV is good up to `valid_context_tokens`."""

    key: AttemptKey
    reason: AbortReason
    message: str = ""
    valid_context_tokens: int = 0
