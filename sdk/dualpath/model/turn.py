"""A turn: one prompt and its generation, the unit of scheduling (the paper's request, §6)."""

from dataclasses import dataclass, field
from enum import StrEnum

from dualpath.model.ids import ROOT_KEY, BlockKey, EngineId, GroupId, NodeId, SessionId, TurnId


class Role(StrEnum):
    """What an engine does; engines of one group share it (§6)."""

    PREFILL = "prefill"
    DECODE = "decode"


class ReadSide(StrEnum):
    """The side of the pair whose node reads the hit KV from storage (§4.1)."""

    PE = "pe"
    DE = "de"


class TurnState(StrEnum):
    """Where a turn stands. A turn is in exactly one of these lines or phases at a time."""

    PREFILL_FIFO = "prefill_fifo"  # waiting for a PE
    DECODE_QUEUE = "decode_queue"  # has a PE, waits in the global line for a DE group
    GROUP_QUEUE = "group_queue"  # has a PE and a DE group, waits in the group's own line for a DE
    PLANNED = "planned"  # pair and read side chosen, plan sent
    READING = "reading"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (TurnState.COMMITTED, TurnState.FAILED, TurnState.CANCELLED)

    @property
    def is_running(self) -> bool:
        return self in (TurnState.PLANNED, TurnState.READING, TurnState.PREFILLING, TurnState.DECODING)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client asked for, immutable from acceptance to the end.

    tokens           prompt tokens after the context: the miss tokens (ids; tail of the last unfull block + append)
    context_key      key of the last full block of the context, ROOT_KEY where the session starts
    hit_tokens       tokens up to and including that block, a multiple of the layout's block_tokens
    hit_keys         keys of all hit blocks from the root to context_key, in order
    arrival          place in the order of acceptance; kept over every attempt
    tenant, priority who submitted it, and the step of its weight; they matter where tenants share fairly
    tag              virtual time at which it is due in the fair order, 0 where the order is FIFO
    deadline_at_s    scheduler clock (monotonic) or None
    forced_tokens    generate exactly max_new_tokens, never stop at the end-of-sequence token (replay, §7)
    """

    turn_id: TurnId
    session_id: SessionId
    arrival: int
    tokens: tuple[int, ...]
    max_new_tokens: int
    context_key: BlockKey = ROOT_KEY
    hit_tokens: int = 0
    hit_keys: tuple[BlockKey, ...] = ()
    forced_tokens: bool = False
    stop_tokens: tuple[int, ...] = ()
    deadline_at_s: float | None = None
    idempotency_key: str = ""
    tenant: str = ""
    priority: int = 0
    tag: int = 0

    @property
    def miss_tokens(self) -> int:
        return len(self.tokens)

    @property
    def prompt_tokens(self) -> int:
        """tokens(r) and len(r) of §6: the whole prompt, hit and miss."""
        return self.hit_tokens + len(self.tokens)

    @property
    def total_tokens_max(self) -> int:
        """Tokens whose KV the DE must be able to hold: what HBM is promised for."""
        return self.prompt_tokens + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Pair:
    """The PE and the DE of a turn."""

    pe: EngineId
    pe_node: NodeId
    pe_group: GroupId
    de: EngineId
    de_node: NodeId
    de_group: GroupId


@dataclass(frozen=True, slots=True)
class Plan:
    """All that agents need to run one attempt of a turn.

    peer addresses are where the nodes' Peers service listens; `assignment` is the scheduler's running number that a
    group states back as `seen`; `scheduler_epoch` guards against a deposed scheduler.
    """

    turn: Turn
    attempt: int
    scheduler_epoch: int
    assignment: int
    pair: Pair
    read_side: ReadSide
    pe_address: str
    de_address: str


class EndReason(StrEnum):
    """Why a turn ended, for every terminal state."""

    STOP_TOKEN = "stop_token"
    LENGTH = "length"  # max_new_tokens were generated
    CANCELLED = "cancelled"  # by the client
    DEADLINE = "deadline"
    CONTEXT_LOST = "context_lost"  # hit blocks missing; valid_context_tokens says up to where they are good
    POISON = "poison"  # attempts_max attempts were lost
    INVALID = "invalid"  # an engine refused it as impossible


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The one committed outcome of a turn.

    context_key/context_tokens  the chain's new last full block and its length: the parent of the session's next turn
    """

    tokens: tuple[int, ...]
    end_reason: EndReason
    context_key: BlockKey = ROOT_KEY
    context_tokens: int = 0
    hit_tokens: int = 0  # hits that really came from storage, after shrinking
    miss_tokens: int = 0
    valid_context_tokens: int = 0
    message: str = ""
    new_keys: tuple[BlockKey, ...] = field(default=(), repr=False)  # blocks this turn added to the chain, in order
