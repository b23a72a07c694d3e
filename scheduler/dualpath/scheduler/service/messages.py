"""What the service tells groups and clients, as plain values; the api puts them on the wire."""

from dataclasses import dataclass
from typing import Protocol

from dualpath.model.errors import DualPathError
from dualpath.model.ids import TurnId
from dualpath.model.turn import Plan, ReadSide, TurnResult, TurnState


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One try of one turn."""

    turn_id: TurnId
    attempt: int


@dataclass(frozen=True, slots=True)
class SendPlan:
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendCancel:
    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class SendCommitAck:
    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SendStale:
    key: AttemptKey
    message: str


@dataclass(frozen=True, slots=True)
class SendDrain:
    deadline_s: float


GroupMessage = SendPlan | SendCancel | SendCommitAck | SendStale | SendDrain


class GroupLink(Protocol):
    """The Work stream of a group, as far as the service cares."""

    def send(self, message: GroupMessage) -> None: ...

    def close(self) -> None:
        """End the stream: the group has to say Hello again."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """A submission that was not accepted, for the client that sent it."""

    idempotency_key: str
    error: DualPathError


@dataclass(frozen=True, slots=True)
class TurnNews:
    """An event of a turn for its clients."""

    turn_id: TurnId
    idempotency_key: str
    attempt: int
    state: TurnState
    first_token: bool = False
    pe: str = ""
    de: str = ""
    de_address: str = ""
    read_side: ReadSide | None = None
    result: TurnResult | None = None
