"""Sessions with the statistics of the paper's agent traces (§7), drawn from a fitted random model.

A session has a first prompt, a rate of appended and one of generated tokens (log-normal over sessions), turns that
scatter around both (log-normal), and a natural end; appends shrink and generations grow as the session goes on. One
population is drawn without a limit and then cut at MaxLen, as the paper does. The fifteen numbers of the paper's
table (five columns at three cuts) are all met within 5 %; a test checks it. The sixteen parameters were found by
random search over those numbers and nothing else.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from dualpath.simulator.workload.sessions import Session, cut_at

PAPER_SESSIONS = 500
PAPER_SEED = 1470
TURNS_MAX = 2000
FIRST_PROMPT_MAX = 28_000
TAIL = 0.03  # ranks beyond are drawn in: no session is an outlier of its kind


@dataclass(frozen=True, slots=True)
class AgentMix:
    """Parameters of the population; logs are natural, spreads are standard deviations of logs.

    first_*     tokens of the first prompt
    append_*    mean tokens appended by a turn of the session; *_scatter between the turns of one session
    gen_*       the same for generated tokens; gen_follows: how much a session that appends more also generates more
    short_*     share of sessions that end early, and the tokens they add after the first prompt
    long_tokens mean tokens after the first prompt of the others (exponential)
    *_age       exponent of (1 + turn / age_turns) by which appends and generations change over a session
    """

    first_log: float = 8.7661
    first_spread: float = 0.7242
    append_log: float = 5.7283
    append_spread: float = 0.3731
    append_scatter: float = 0.975
    append_age: float = -0.4138
    gen_log: float = 4.7404
    gen_spread: float = 0.8709
    gen_scatter: float = 1.9073
    gen_age: float = 0.0782
    gen_follows: float = 1.2011
    short_share: float = 0.1864
    short_log: float = 8.869
    short_spread: float = 0.6721
    long_tokens: float = 788_561.0
    age_turns: float = 57.2634


def population(count: int, seed: int, mix: AgentMix | None = None) -> tuple[Session, ...]:
    """`count` sessions without a length limit (but at most TURNS_MAX turns).

    What a session is like is drawn by Latin hypercube: 500 sessions then have the population's means for any seed.
    """
    mix = mix or AgentMix()
    chance = np.random.default_rng((seed, count))
    columns = [(chance.permutation(count) + chance.random(count)) / count for _ in range(5)]
    return tuple(
        _session(np.random.default_rng((seed, number)), mix, [float(column[number]) for column in columns])
        for number in range(count)
    )


def paper_sessions(
    tokens_max: int,
    count: int,
    *,
    seed: int = PAPER_SEED,
    append_scale: float = 1.0,
    gen_scale: float = 1.0,
) -> tuple[Session, ...]:
    """The paper's set for one MaxLen: 500 sessions, more by its rule, fewer by taking the first ones.

    Extra sessions (§7): one of the 500 with a turn before it that appends a random number of tokens (our reading: of
    the size of an append drawn from all turns of the set) and generates one, so that no prefix is shared.
    Appends and generations are scaled before the cut (§8).
    """
    base = [_scaled(session, append_scale, gen_scale) for session in _paper_population(seed)]
    cut = [cut_at(session, tokens_max) for session in base]
    if count <= len(cut):
        return tuple(cut[:count])
    chance = np.random.default_rng((seed, PAPER_SESSIONS))
    appends = np.concatenate([np.asarray(session.appends) for session in cut])
    extra = []
    for _ in range(count - len(cut)):
        session = base[int(chance.integers(len(base)))]
        first = int(appends[int(chance.integers(len(appends)))])
        longer = Session(array("l", [first, *session.appends]), array("l", [1, *session.gens]))
        extra.append(cut_at(longer, tokens_max))
    return (*cut, *extra)


@lru_cache(maxsize=2)
def _paper_population(seed: int) -> tuple[Session, ...]:
    return population(PAPER_SESSIONS, seed)


def _session(chance: np.random.Generator, mix: AgentMix, ranks: list[float]) -> Session:
    """`ranks`: where the session stands in the population, from 0 to 1, in five respects."""
    first_rank, append_rank, gen_rank, kind_rank, end_rank = ranks
    first = min(FIRST_PROMPT_MAX, math.exp(_normal(first_rank, mix.first_log, mix.first_spread)))
    append_tilt = _normal(append_rank, 0.0, mix.append_spread)
    append = math.exp(mix.append_log + append_tilt)
    gen = math.exp(_normal(gen_rank, mix.gen_log, mix.gen_spread) + mix.gen_follows * append_tilt)
    if kind_rank < mix.short_share:
        later = math.exp(_normal(end_rank, mix.short_log, mix.short_spread))
    else:
        later = -mix.long_tokens * math.log1p(-end_rank)
    age = 1.0 + np.arange(TURNS_MAX) / mix.age_turns
    appends = _turns(chance, append, mix.append_scatter) * age**mix.append_age
    gens = _turns(chance, gen, mix.gen_scatter) * age**mix.gen_age
    appends[0] = first
    appends = np.maximum(1, np.floor(appends)).astype(np.int64)
    gens = np.maximum(1, np.floor(gens)).astype(np.int64)
    count = max(1, int(np.searchsorted(np.cumsum(appends + gens), first + later, side="right")))
    return Session(array("l", appends[:count].tolist()), array("l", gens[:count].tolist()))


def _normal(rank: float, mean: float, spread: float) -> float:
    return NormalDist(mean, spread).inv_cdf(min(max(rank, TAIL), 1 - TAIL))


def _turns(chance: np.random.Generator, mean: float, scatter: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Log-normal around `mean`, so that the scatter does not move the mean."""
    return mean * np.exp(chance.normal(-scatter * scatter / 2, scatter, TURNS_MAX))


def _scaled(session: Session, append_scale: float, gen_scale: float) -> Session:
    if append_scale == 1.0 and gen_scale == 1.0:
        return session
    return Session(_times(session.appends, append_scale), _times(session.gens, gen_scale))


def _times(tokens: Sequence[int], scale: float) -> "array[int]":
    return array("l", [max(1, round(count * scale)) for count in tokens])
