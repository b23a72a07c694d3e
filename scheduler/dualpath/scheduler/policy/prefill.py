"""PE scheduling (paper §6.1, Algorithm 1): give turns from the FIFO's head to the engines of one PE group.

    C1 = {tok_e > beta}                      overloaded, gets nothing
    C2 = {read_q(node) <= alpha, tok_e <= beta}   preferred
    C3 = {read_q(node) >  alpha, tok_e <= beta}
    while the FIFO is not empty: the head goes to the engine of C2 with the least tok_e, else of C3, else stop

Placing a turn changes tok_e of one engine and nothing else, so an engine only ever leaves C2 or C3 for C1: one heap of
engines, keyed by (class, tok_e, ties), gives each placement in O(log engines).
"""

import heapq

from dualpath.scheduler.policy.decisions import Placement, PlacementReason, PrefillDecision, StopReason
from dualpath.scheduler.policy.snapshot import Classify, EngineView, PolicyLimits, PrefillSnapshot, in_rotation

# (is C3, tok_e, read_q, seq_e, place in the rotation, engine): ties fall to the shortest read queue, then to the fewest
# turns, then to the rotation (our reading: never always to the lowest id); places differ, so engines are not compared
_Entry = tuple[bool, int, int, int, int, EngineView]


def assign_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
    """Place a prefix of `snapshot.waiting`; changes nothing, neither the snapshot nor the engines."""
    if not snapshot.engines:
        return PrefillDecision((), StopReason.NO_ENGINES, len(snapshot.waiting))
    beta_tokens = limits.beta_tokens
    each_placement = limits.classify is Classify.EACH_PLACEMENT
    heap = [
        _entry(engine, place, snapshot, limits)
        for place, engine in enumerate(in_rotation(snapshot.engines, snapshot.rotation))
        if engine.open_tokens <= beta_tokens
    ]
    heapq.heapify(heap)
    placements: list[Placement] = []
    for turn in snapshot.waiting:
        if not heap:
            return PrefillDecision(
                tuple(placements), StopReason.ALL_OVERLOADED, len(snapshot.waiting) - len(placements)
            )
        queue_is_long, open_tokens, read_queue, open_turns, place, engine = heap[0]
        placements.append(
            Placement(
                turn.turn_id,
                engine.engine_id,
                PlacementReason.LONG_QUEUE if queue_is_long else PlacementReason.SHORT_QUEUE,
                open_tokens,
                open_turns,
                read_queue,
            )
        )
        after: _Entry = (
            queue_is_long,
            open_tokens + turn.prompt_tokens,
            read_queue,
            open_turns + 1,
            place,
            engine,
        )
        if each_placement and after[1] > beta_tokens:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, after)
    return PrefillDecision(tuple(placements), StopReason.EMPTY_QUEUE, 0)


def _entry(engine: EngineView, place: int, snapshot: PrefillSnapshot, limits: PolicyLimits) -> _Entry:
    read_queue = snapshot.read_queue_tokens.get(engine.node_id, 0)
    return (
        read_queue > limits.alpha_tokens,
        engine.open_tokens,
        read_queue,
        engine.open_turns,
        place,
        engine,
    )
