"""The paper's rules written as slowly and as literally as possible: the oracle of the property tests (§6.1).

No heap, no state between turns: for each turn all engines are classified and compared anew.
"""

from collections.abc import Sequence

from dualpath.model.ids import EngineId, TurnId
from dualpath.scheduler.policy.snapshot import (
    Classify,
    DecodeSnapshot,
    EngineView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)

Pairs = list[tuple[TurnId, EngineId]]


def naive_prefill(snapshot: PrefillSnapshot, limits: PolicyLimits) -> Pairs:
    """Algorithm 1, line by line."""
    tok = {e.engine_id: e.open_tokens for e in snapshot.engines}
    seq = {e.engine_id: e.open_turns for e in snapshot.engines}
    read_q = {e.engine_id: snapshot.read_queue_tokens.get(e.node_id, 0) for e in snapshot.engines}
    once = limits.classify is Classify.ONCE_PER_FETCH
    usable = [e for e in snapshot.engines if e.open_tokens <= limits.beta_tokens]
    pairs: Pairs = []
    for turn in snapshot.waiting:
        under = usable if once else [e for e in usable if tok[e.engine_id] <= limits.beta_tokens]
        short = [e for e in under if read_q[e.engine_id] <= limits.alpha_tokens]
        candidates = short or under
        if not candidates:
            break
        order = _places(snapshot.engines, snapshot.rotation)
        best = min(candidates, key=lambda e: (tok[e.engine_id], read_q[e.engine_id], seq[e.engine_id], order[e.rank]))
        pairs.append((turn.turn_id, best.engine_id))
        tok[best.engine_id] += turn.prompt_tokens
        seq[best.engine_id] += 1
    return pairs


def naive_decode(snapshot: DecodeSnapshot, limits: PolicyLimits) -> Pairs:
    """DE scheduling inside a group."""
    tok = {e.engine_id: e.open_tokens for e in snapshot.engines}
    seq = {e.engine_id: e.open_turns for e in snapshot.engines}
    free = {e.engine_id: e.free_hbm_tokens for e in snapshot.engines}
    mark = naive_high_mark(snapshot, limits)
    order = _places(snapshot.engines, snapshot.rotation)
    pairs: Pairs = []
    for turn in snapshot.waiting:
        roomy = [e for e in snapshot.engines if free[e.engine_id] >= turn.total_tokens_max]
        if not roomy:
            break
        low = [e for e in roomy if tok[e.engine_id] + turn.prompt_tokens <= mark]
        if low:
            best = min(low, key=lambda e: (seq[e.engine_id], tok[e.engine_id], order[e.rank]))
        else:
            best = min(roomy, key=lambda e: (tok[e.engine_id], seq[e.engine_id], order[e.rank]))
        pairs.append((turn.turn_id, best.engine_id))
        tok[best.engine_id] += turn.prompt_tokens
        seq[best.engine_id] += 1
        free[best.engine_id] -= turn.total_tokens_max
    return pairs


def naive_high_mark(snapshot: DecodeSnapshot, limits: PolicyLimits) -> float:
    """Z: tries every prefix of the queue for R, the longest first."""
    free = sum(max(e.free_hbm_tokens, 0) for e in snapshot.engines)
    prefixes = [snapshot.waiting[:n] for n in range(len(snapshot.waiting), -1, -1)]
    fitting = next(r for r in prefixes if sum(turn.total_tokens_max for turn in r) <= free)
    total = _prompt_tokens(fitting) + sum(e.open_tokens for e in snapshot.engines)
    return limits.high_mark_factor * total / len(snapshot.engines) if snapshot.engines else 0.0


def _prompt_tokens(turns: Sequence[WaitingTurn]) -> int:
    return sum(turn.prompt_tokens for turn in turns)


def _places(engines: tuple[EngineView, ...], rotation: int) -> dict[int, int]:
    """Rank -> place in which ties are broken."""
    ranks = sorted(e.rank for e in engines)
    return {rank: (i - rotation) % len(ranks) for i, rank in enumerate(ranks)}
