"""Policies by name, and the sentences that explain their reasons."""

from enum import StrEnum

import pytest

from dualpath.model.errors import Rejected
from dualpath.model.ids import EngineId, NodeId, TurnId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import PlacementReason, ReadReason, StopReason, describe
from dualpath.scheduler.policy.registry import BASIC, DUALPATH, POLICIES, ROUNDROBIN, Policy, policy_named
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, EngineView, PolicyLimits, PrefillSnapshot, WaitingTurn

P, D = NodeId("p"), NodeId("d")
SKEWED = {P: 900, D: 10}


def test_policies_are_found_by_their_names() -> None:
    assert policy_named("dualpath") is DUALPATH
    assert policy_named("basic") is BASIC
    assert policy_named("roundrobin") is ROUNDROBIN
    assert all(name == policy.name for name, policy in POLICIES.items())


def test_an_unknown_policy_is_rejected_with_the_names_there_are() -> None:
    with pytest.raises(Rejected, match=r"policy 'fifo' is unknown, wanted one of basic, dualpath, roundrobin"):
        policy_named("fifo")


def test_the_policies_differ_in_where_they_read() -> None:
    sides = {
        name: [policy.choose_read_side(P, D, SKEWED, hit_tokens=64, rotation=r).side for r in (0, 1)]
        for name, policy in POLICIES.items()
    }

    assert sides == {
        "dualpath": [ReadSide.DE, ReadSide.DE],
        "basic": [ReadSide.PE, ReadSide.PE],
        "roundrobin": [ReadSide.PE, ReadSide.DE],
    }


def test_only_dualpath_looks_at_open_tokens() -> None:
    turns = tuple(WaitingTurn(TurnId(f"t{i}"), i, 0, 10) for i in range(2))
    engines = (EngineView(EngineId("busy"), P, 0, 3, 300), EngineView(EngineId("idle"), P, 1, 0, 0))
    snapshot = PrefillSnapshot(turns, engines, {})

    chosen = {
        name: [p.engine_id for p in policy.assign_prefill(snapshot, PolicyLimits()).placements]
        for name, policy in POLICIES.items()
    }

    assert chosen == {"dualpath": ["idle", "idle"], "basic": ["busy", "idle"], "roundrobin": ["busy", "idle"]}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_a_group_without_engines_says_so(policy: Policy) -> None:
    turns = (WaitingTurn(TurnId("t1"), 1, 0, 10),)

    prefill = policy.assign_prefill(PrefillSnapshot(turns, (), {}), PolicyLimits())
    decode = policy.assign_decode(DecodeSnapshot(turns, ()), PolicyLimits())

    assert (prefill.placements, prefill.stop, prefill.waiting) == ((), StopReason.NO_ENGINES, 1)
    assert (decode.placements, decode.stop, decode.waiting) == ((), StopReason.NO_ENGINES, 1)


@pytest.mark.parametrize("reasons", [PlacementReason, StopReason, ReadReason])
def test_every_reason_has_a_sentence(reasons: type[StrEnum]) -> None:
    sentences = [describe(reason) for reason in reasons]  # type: ignore[arg-type]

    assert all(sentences)
    assert len(set(sentences)) == len(sentences)


def test_no_two_reasons_share_a_word() -> None:
    """They are keys of one table and labels of one metric; members of StrEnums with equal text would collide."""
    words = [*PlacementReason, *StopReason, *ReadReason]

    assert len({str(word) for word in words}) == len(words)
