"""Which side of the pair reads the hit KV (paper §6.1): the node with the shorter read queue."""

from collections.abc import Mapping

from dualpath.model.ids import NodeId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import ReadReason, ReadSideDecision


def choose_read_side(
    pe_node: NodeId,
    de_node: NodeId,
    read_queue_tokens: Mapping[NodeId, int],
    *,
    hit_tokens: int,
    rotation: int = 0,
) -> ReadSideDecision:
    """The caller adds the turn's hit tokens to the chosen node's queue afterwards. Equal queues take turns."""
    pe_queue = read_queue_tokens.get(pe_node, 0)
    de_queue = read_queue_tokens.get(de_node, 0)
    if hit_tokens == 0:
        side, reason = ReadSide.PE, ReadReason.NO_HITS
    elif pe_queue == de_queue:
        side, reason = (ReadSide.PE, ReadSide.DE)[rotation % 2], ReadReason.EQUAL_QUEUES
    else:
        side, reason = (ReadSide.PE if pe_queue < de_queue else ReadSide.DE), ReadReason.SHORTER_QUEUE
    return ReadSideDecision(side, reason, pe_queue, de_queue)
