"""A policy of one's own: prompts go where the least work waits, reads and prefill counted together.

The paper sorts engines by their read queue first and by open tokens then, with a hard step at alpha. Here both are one
sum, so an engine behind a long read queue still gets turns once the others are busy enough. What the file does not
define is the paper's.
"""

from dualpath.scheduler.policy.decisions import Placement, PlacementReason, PrefillDecision, StopReason
from dualpath.scheduler.policy.snapshot import PolicyLimits, PrefillSnapshot, in_rotation

# A token to read weighs less than one to compute. A guess to start from: measure on your own machine.
READ_WEIGHT = 0.3


def assign_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> PrefillDecision:
    """Each turn to the engine with the least to do, none to an engine over beta."""
    engines = in_rotation(snapshot.engines, snapshot.rotation)  # min() takes the first of equals, so ties rotate
    if not engines:
        return PrefillDecision((), StopReason.NO_ENGINES, len(snapshot.waiting))
    reads = [snapshot.read_queue_tokens.get(engine.node_id, 0) for engine in engines]
    tokens = [engine.open_tokens for engine in engines]
    turns = [engine.open_turns for engine in engines]
    placements: list[Placement] = []
    for turn in snapshot.waiting:
        free = [at for at in range(len(engines)) if tokens[at] <= limits.beta_tokens]
        if not free:
            left = len(snapshot.waiting) - len(placements)
            return PrefillDecision(tuple(placements), StopReason.ALL_OVERLOADED, left)
        best = min(free, key=lambda at: tokens[at] + READ_WEIGHT * reads[at])
        reason = PlacementReason.SHORT_QUEUE if reads[best] <= limits.alpha_tokens else PlacementReason.LONG_QUEUE
        chosen = engines[best].engine_id
        placements.append(Placement(turn.turn_id, chosen, reason, tokens[best], turns[best], reads[best]))
        tokens[best] += turn.prompt_tokens
        turns[best] += 1
    return PrefillDecision(tuple(placements), StopReason.EMPTY_QUEUE, 0)
