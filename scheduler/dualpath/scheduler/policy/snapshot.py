"""What a policy sees and the limits it obeys (paper §6). All values are immutable.

What is made anew for every turn or fetch is a NamedTuple: a third of the cost of a frozen dataclass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

from dualpath.model.errors import Rejected
from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId

SKIP_AHEAD_MAX = 1024  # of skip_ahead_turns, since each fetch looks at all of them


class WaitingTurn(NamedTuple):
    """A turn in a line, as far as placing it needs to know."""

    turn_id: TurnId
    arrival: int
    hit_tokens: int
    miss_tokens: int
    max_new_tokens: int = 1
    overtaken: int = 0  # turns behind it that were placed first (skip-ahead)

    @property
    def prompt_tokens(self) -> int:
        """tokens(r) and len(r): the whole prompt (our reading: hit + miss)."""
        return self.hit_tokens + self.miss_tokens

    @property
    def total_tokens_max(self) -> int:
        """HBM a DE must promise: prompt and everything it may generate."""
        return self.prompt_tokens + self.max_new_tokens


class EngineView(NamedTuple):
    """One engine's load. `rank` is its place in the rotation that breaks ties, unique within the snapshot."""

    engine_id: EngineId
    node_id: NodeId
    rank: int
    open_turns: int
    open_tokens: int
    free_hbm_tokens: int = 0


class Ranked(Protocol):
    @property
    def rank(self) -> int: ...


RankedT = TypeVar("RankedT", bound=Ranked)

_RANK = attrgetter("rank")


def in_rotation(views: Sequence[RankedT], rotation: int) -> list[RankedT]:
    """Engines or groups in the order in which ties fall to them: by rank, the first `rotation` of them moved behind.

    Counted in places, not in ranks: engines come and go, and a gap in the ranks must not favour anyone.
    """
    order = sorted(views, key=_RANK)
    start = rotation % len(order) if order else 0
    return order[start:] + order[:start]


def prompt_tokens_within(waiting: Sequence[WaitingTurn], hbm_tokens: int) -> int:
    """Prompt tokens of R, the longest prefix of the line whose turns need no more than `hbm_tokens` together (§6.1).

    A line may know its prefixes itself (lifecycle.lines): at tens of thousands of turns, walking them would be most of
    a decision.
    """
    counted: Callable[[int], int] | None = getattr(waiting, "prompt_tokens_within", None)
    if counted is not None:
        return counted(hbm_tokens)
    total = 0
    for turn in waiting:
        prompt = turn.prompt_tokens
        hbm_tokens -= prompt + turn.max_new_tokens
        if hbm_tokens < 0:
            break
        total += prompt
    return total


@dataclass(frozen=True, slots=True)
class PrefillSnapshot:
    """One fetch of a PE group: the FIFO (head first), its engines, and the read queues of their nodes.

    rotation  moves on with every fetch, so that ties do not always fall to the same engine
    """

    waiting: Sequence[WaitingTurn]
    engines: tuple[EngineView, ...]
    read_queue_tokens: Mapping[NodeId, int]
    rotation: int = 0


class GroupView(NamedTuple):
    """A DE group: open tokens of its engines, and of the turns that wait in its own queue."""

    group_id: GroupId
    rank: int
    open_tokens: int
    queued_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DecodeSnapshot:
    """One fetch of a DE group: its own queue (head first) and its engines."""

    waiting: Sequence[WaitingTurn]
    engines: tuple[EngineView, ...]
    rotation: int = 0


class Classify(StrEnum):
    """When Algorithm 1 sorts engines into its classes."""

    EACH_PLACEMENT = "each_placement"  # our reading: else one fetch could drain the FIFO onto one group
    ONCE_PER_FETCH = "once_per_fetch"  # the paper's text taken literally


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """alpha, beta and the high mark (paper §6); swapped whole while running.

    alpha_tokens      read queue up to which a node counts as short: what its SNIC reads in 3 s
    beta_tokens       open tokens above which a PE gets nothing: what one GPU processes in 5 s
    high_mark_factor  headroom over the even share, above which a DE counts as high
    skip_ahead_turns  turns without room that one fetch of a DE group passes over; 0, the paper: the first one ends it
    overtakes_max     times that one turn may be passed over; then nobody goes before it
    """

    alpha_tokens: int = 200_000
    beta_tokens: int = 400_000
    high_mark_factor: float = 1.05
    classify: Classify = Classify.EACH_PLACEMENT
    skip_ahead_turns: int = 0
    overtakes_max: int = 100

    def __post_init__(self) -> None:
        if self.alpha_tokens < 0:
            raise _limit("alpha_tokens", self.alpha_tokens, "at least 0")
        if self.beta_tokens < 0:
            raise _limit("beta_tokens", self.beta_tokens, "at least 0")
        if not 1.0 <= self.high_mark_factor <= 10.0:
            raise _limit("high_mark_factor", self.high_mark_factor, "between 1 and 10")
        if not 0 <= self.skip_ahead_turns <= SKIP_AHEAD_MAX:
            raise _limit("skip_ahead_turns", self.skip_ahead_turns, f"between 0 and {SKIP_AHEAD_MAX}")
        if self.overtakes_max < 1:
            raise _limit("overtakes_max", self.overtakes_max, "at least 1")


def _limit(field: str, found: float, wanted: str) -> Rejected:
    return Rejected(f"{field} is {found}, wanted {wanted}", field=field, reason="POLICY_LIMITS")
