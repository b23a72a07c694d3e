"""What a policy is asked: one snapshot per function, as arguments for it and as text in the words of tests/scenarios.

The scheduler hands out a lazy sequence as the line and a dict as the read queues; a policy may rely on neither being
a list, nor may it change them. So a case makes its arguments anew for every call, in one of two forms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import ClassVar, overload

from dualpath.model.ids import NodeId
from dualpath.scheduler.policy.snapshot import (
    Classify,
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)


class Function(StrEnum):
    """The four functions of a policy."""

    ASSIGN_PREFILL = "assign_prefill"
    SPREAD_TO_GROUPS = "spread_to_groups"
    ASSIGN_DECODE = "assign_decode"
    CHOOSE_READ_SIDE = "choose_read_side"


class Form(Enum):
    """How lines and read queues are handed over."""

    LISTS = "lists and dicts, fresh for this call"
    READ_ONLY = "sequences and mappings that only let themselves be read"


class Line(Sequence[WaitingTurn]):
    """A line as the scheduler hands it out: a sequence and nothing else."""

    def __init__(self, turns: Sequence[WaitingTurn]) -> None:
        self._turns = tuple(turns)

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, index: int) -> WaitingTurn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WaitingTurn]: ...
    def __getitem__(self, index: int | slice) -> WaitingTurn | Sequence[WaitingTurn]:
        return list(self._turns[index]) if isinstance(index, slice) else self._turns[index]


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call's arguments."""

    positional: tuple[object, ...]
    keywords: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefillCase:
    """A fetch of a PE group."""

    function: ClassVar[Function] = Function.ASSIGN_PREFILL
    snapshot: PrefillSnapshot
    limits: PolicyLimits

    def arguments(self, form: Form = Form.LISTS) -> Arguments:
        """The snapshot in this form, and the limits."""
        snapshot = replace(
            self.snapshot,
            waiting=_line(self.snapshot.waiting, form),
            read_queue_tokens=_queues(self.snapshot.read_queue_tokens, form),
        )
        return Arguments((snapshot, self.limits))

    def story(self) -> list[str]:
        """The situation, one line per thing."""
        snapshot, limits = self.snapshot, self.limits
        classify = "" if limits.classify is Classify.EACH_PLACEMENT else f" classify={limits.classify}"
        return [
            f"limits alpha={limits.alpha_tokens} beta={limits.beta_tokens}{classify}",
            *_node_lines(snapshot.read_queue_tokens),
            *_engine_lines(snapshot.engines, with_hbm=False),
            *_line_lines(snapshot.waiting, with_new=False),
            *_rotation_lines(snapshot.rotation),
            "fetch pe-group-0",
        ]


@dataclass(frozen=True, slots=True)
class SpreadCase:
    """The decode queue and the DE groups it is spread over."""

    function: ClassVar[Function] = Function.SPREAD_TO_GROUPS
    turns: Sequence[WaitingTurn]
    groups: Sequence[GroupView]
    rotation: int = 0

    def arguments(self, form: Form = Form.LISTS) -> Arguments:
        """Turns and groups in this form."""
        groups = list(self.groups) if form is Form.LISTS else tuple(self.groups)
        return Arguments((_line(self.turns, form), groups), {"rotation": self.rotation})

    def story(self) -> list[str]:
        """The situation, one line per thing."""
        groups = [
            f"group {group.group_id}{_rank(group.rank, place)} open={group.open_tokens} queued={group.queued_tokens}"
            for place, group in enumerate(self.groups)
        ]
        return [*groups, *_line_lines(self.turns, with_new=False), *_rotation_lines(self.rotation), "spread"]


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """A fetch of a DE group."""

    function: ClassVar[Function] = Function.ASSIGN_DECODE
    snapshot: DecodeSnapshot
    limits: PolicyLimits

    def arguments(self, form: Form = Form.LISTS) -> Arguments:
        """The snapshot in this form, and the limits."""
        return Arguments((replace(self.snapshot, waiting=_line(self.snapshot.waiting, form)), self.limits))

    def story(self) -> list[str]:
        """The situation, one line per thing."""
        return [
            f"limits high_mark={self.limits.high_mark_factor}",
            *_engine_lines(self.snapshot.engines, with_hbm=True),
            *_line_lines(self.snapshot.waiting, with_new=True),
            *_rotation_lines(self.snapshot.rotation),
            "fetch de-group-0",
        ]


@dataclass(frozen=True, slots=True)
class ReadCase:
    """A pair and the read queues of its nodes."""

    function: ClassVar[Function] = Function.CHOOSE_READ_SIDE
    pe_node: NodeId
    de_node: NodeId
    read_queue_tokens: Mapping[NodeId, int]
    hit_tokens: int
    rotation: int = 0

    def arguments(self, form: Form = Form.LISTS) -> Arguments:
        """The nodes, and the read queues in this form."""
        queues = _queues(self.read_queue_tokens, form)
        keywords = {"hit_tokens": self.hit_tokens, "rotation": self.rotation}
        return Arguments((self.pe_node, self.de_node, queues), keywords)

    def story(self) -> list[str]:
        """The situation, one line per thing."""
        return [
            *_node_lines(self.read_queue_tokens),
            f"turns t1={self.hit_tokens}+1",
            *_rotation_lines(self.rotation),
            f"read t1 pe={self.pe_node} de={self.de_node}",
        ]


Case = PrefillCase | SpreadCase | DecodeCase | ReadCase


def _line(turns: Sequence[WaitingTurn], form: Form) -> Sequence[WaitingTurn]:
    return list(turns) if form is Form.LISTS else Line(turns)


def _queues(queues: Mapping[NodeId, int], form: Form) -> Mapping[NodeId, int]:
    return dict(queues) if form is Form.LISTS else MappingProxyType(dict(queues))


def _node_lines(queues: Mapping[NodeId, int]) -> list[str]:
    return [f"node {node} read_queue={tokens}" for node, tokens in sorted(queues.items())]


def _engine_lines(engines: Sequence[EngineView], *, with_hbm: bool) -> list[str]:
    return [
        f"engine {engine.engine_id}{_rank(engine.rank, place)} open={engine.open_tokens} turns={engine.open_turns}"
        + (f" free_hbm={engine.free_hbm_tokens}" if with_hbm else "")
        for place, engine in enumerate(engines)
    ]


def _rank(rank: int, place: int) -> str:
    """Said where it is not the place in the text, which is what a scenario takes."""
    return "" if rank == place else f" rank={rank}"


def _line_lines(turns: Sequence[WaitingTurn], *, with_new: bool) -> list[str]:
    if not turns:
        return []
    return ["turns " + " ".join(f"{turn.turn_id}={_shape(turn, with_new=with_new)}" for turn in turns)]


def _shape(turn: WaitingTurn, *, with_new: bool) -> str:
    """[hit +] miss [/ max new tokens]"""
    hit = f"{turn.hit_tokens}+" if turn.hit_tokens else ""
    return f"{hit}{turn.miss_tokens}" + (f"/{turn.max_new_tokens}" if with_new or turn.max_new_tokens != 1 else "")


def _rotation_lines(rotation: int) -> list[str]:
    return [f"rotation {rotation}"] if rotation else []
