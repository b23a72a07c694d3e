"""The choice of the read side as the paper states it (§4.1, §6.1)."""

from dualpath.model.ids import NodeId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import ReadReason
from dualpath.scheduler.policy.read_side import choose_read_side
from dualpath.scheduler.policy.registry import BASIC, DUALPATH, Policy

P, D = NodeId("p"), NodeId("d")


def test_the_node_with_the_shorter_read_queue_reads() -> None:
    """§6.1: when PE and DE are both known, the side with the shorter read queue."""
    pe = choose_read_side(P, D, {P: 99, D: 100}, hit_tokens=64)
    de = choose_read_side(P, D, {P: 100, D: 99}, hit_tokens=64)

    assert (pe.side, de.side) == (ReadSide.PE, ReadSide.DE)
    assert pe.reason is de.reason is ReadReason.SHORTER_QUEUE
    assert (de.pe_queue_tokens, de.de_queue_tokens) == (100, 99)


def test_a_node_that_said_nothing_has_an_empty_queue() -> None:
    """§6.1, our reading: a queue nobody reported is empty, so a fresh node is used at once."""
    assert choose_read_side(P, D, {P: 1}, hit_tokens=64).side is ReadSide.DE


def test_equal_queues_take_turns() -> None:
    """§6.1, our reading of ties: neither side is always preferred."""
    decisions = [choose_read_side(P, D, {P: 7, D: 7}, hit_tokens=64, rotation=r) for r in range(4)]

    assert [d.side for d in decisions] == [ReadSide.PE, ReadSide.DE, ReadSide.PE, ReadSide.DE]
    assert {d.reason for d in decisions} == {ReadReason.EQUAL_QUEUES}


def test_a_turn_without_hits_needs_no_choice() -> None:
    """§4.1: there is nothing to read; the miss tokens' KV goes from PE to DE on either path."""
    decision = choose_read_side(P, D, {P: 100, D: 0}, hit_tokens=0)

    assert decision.reason is ReadReason.NO_HITS


def test_the_length_of_the_turn_does_not_matter() -> None:
    """§6.1: the queues as they stand are compared, the turn is added to the chosen one afterwards."""
    sides = {choose_read_side(P, D, {P: 10, D: 20}, hit_tokens=hit).side for hit in (1, 10**9)}

    assert sides == {ReadSide.PE}


def test_both_storage_nics_form_one_pool() -> None:
    """§4.1: with one P and one D node all hits are read on both; other systems leave the D node's NIC idle."""
    assert _read_tokens(DUALPATH, turns=100) == {P: 3_200, D: 3_200}
    assert _read_tokens(BASIC, turns=100) == {P: 6_400, D: 0}


def test_a_node_that_is_behind_is_left_alone_until_it_has_caught_up() -> None:
    """§6.1: the queue steers: 320 tokens behind are five turns of 64 for the other side."""
    assert _read_tokens(DUALPATH, turns=5, behind=320) == {P: 320, D: 320}


def _read_tokens(policy: Policy, *, turns: int, behind: int = 0) -> dict[NodeId, int]:
    """Read queues after so many turns of 64 hit tokens, nothing being read meanwhile."""
    queues = {P: behind, D: 0}
    for rotation in range(turns):
        side = policy.choose_read_side(P, D, queues, hit_tokens=64, rotation=rotation).side
        queues[P if side is ReadSide.PE else D] += 64
    return queues
