"""Policies by name: four functions that belong together, so that choosing another one is one switch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dualpath.model.errors import Rejected
from dualpath.model.ids import NodeId
from dualpath.scheduler.policy.baselines import (
    read_alternating,
    read_on_pe_side,
    round_robin_decode,
    round_robin_groups,
    round_robin_prefill,
)
from dualpath.scheduler.policy.decisions import DecodeDecision, GroupPlacement, PrefillDecision, ReadSideDecision
from dualpath.scheduler.policy.decode import assign_decode, spread_to_groups
from dualpath.scheduler.policy.prefill import assign_prefill
from dualpath.scheduler.policy.read_side import choose_read_side
from dualpath.scheduler.policy.snapshot import (
    DecodeSnapshot,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)


class AssignPrefill(Protocol):
    def __call__(self, snapshot: PrefillSnapshot, limits: PolicyLimits, /) -> PrefillDecision: ...


class SpreadToGroups(Protocol):
    def __call__(
        self, turns: Sequence[WaitingTurn], groups: Sequence[GroupView], /, *, rotation: int = 0
    ) -> tuple[GroupPlacement, ...]: ...


class AssignDecode(Protocol):
    def __call__(self, snapshot: DecodeSnapshot, limits: PolicyLimits, /) -> DecodeDecision: ...


class ChooseReadSide(Protocol):
    def __call__(
        self,
        pe_node: NodeId,
        de_node: NodeId,
        read_queue_tokens: Mapping[NodeId, int],
        /,
        *,
        hit_tokens: int,
        rotation: int = 0,
    ) -> ReadSideDecision: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to schedule."""

    name: str
    assign_prefill: AssignPrefill
    spread_to_groups: SpreadToGroups
    assign_decode: AssignDecode
    choose_read_side: ChooseReadSide


DUALPATH = Policy("dualpath", assign_prefill, spread_to_groups, assign_decode, choose_read_side)
BASIC = Policy("basic", round_robin_prefill, round_robin_groups, round_robin_decode, read_on_pe_side)
ROUNDROBIN = Policy("roundrobin", round_robin_prefill, round_robin_groups, round_robin_decode, read_alternating)

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (DUALPATH, BASIC, ROUNDROBIN)}


def policy_named(name: str) -> Policy:
    """raises Rejected, naming the policies there are"""
    try:
        return POLICIES[name]
    except KeyError as error:
        message = f"policy {name!r} is unknown, wanted one of {', '.join(sorted(POLICIES))}"
        raise Rejected(message, field="policy", reason="UNKNOWN_POLICY") from error
