"""Laws of the choice of the read side."""

from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.ids import NodeId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.read_side import choose_read_side
from strategies import examples, read_queues, rotations

laws = examples(0.5)
nodes = st.sampled_from([NodeId(f"n{i}") for i in range(4)])


@laws
@given(nodes, nodes, read_queues(), st.integers(1, 500), rotations())
def test_the_chosen_node_never_has_the_longer_queue(
    pe_node: NodeId, de_node: NodeId, queues: dict[NodeId, int], hit_tokens: int, rotation: int
) -> None:
    decision = choose_read_side(pe_node, de_node, queues, hit_tokens=hit_tokens, rotation=rotation)

    queue = {ReadSide.PE: decision.pe_queue_tokens, ReadSide.DE: decision.de_queue_tokens}
    assert queue == {ReadSide.PE: queues.get(pe_node, 0), ReadSide.DE: queues.get(de_node, 0)}
    assert queue[decision.side] == min(queue.values())


@laws
@given(nodes, nodes, read_queues(), st.integers(1, 500))
def test_on_a_tie_the_next_rotation_takes_the_other_side(
    pe_node: NodeId, de_node: NodeId, queues: dict[NodeId, int], hit_tokens: int
) -> None:
    sides = [choose_read_side(pe_node, de_node, queues, hit_tokens=hit_tokens, rotation=r).side for r in range(4)]

    tie = queues.get(pe_node, 0) == queues.get(de_node, 0)
    assert len(set(sides)) == (2 if tie else 1)
    assert sides[:2] == sides[2:]


@laws
@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_two_nodes_never_drift_apart_by_more_than_one_turn(hits: list[int]) -> None:
    """Join the shorter queue: adding each turn's hits afterwards keeps the difference below the longest turn."""
    queues = {NodeId("p"): 0, NodeId("d"): 0}

    for rotation, hit_tokens in enumerate(hits):
        decision = choose_read_side(NodeId("p"), NodeId("d"), queues, hit_tokens=hit_tokens, rotation=rotation)
        queues[NodeId("p") if decision.side is ReadSide.PE else NodeId("d")] += hit_tokens

    assert abs(queues[NodeId("p")] - queues[NodeId("d")]) <= max(hits)
