"""What a simulated session is: how many tokens each turn appends and generates, and how long its tools take."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from dualpath.client.traces import PAUSE_SHARE, TraceCounts
from dualpath.model.layout import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Session:
    """One agent run (the paper's trajectory), before it is placed in time.

    appends, gens  tokens of each turn; the prompt of turn i is everything before it and appends[i]
    pauses_s       time from the end of turn i-1 to the submission of turn i; empty: none anywhere
    keeps          context kept by turn i, -1 for all of it (a compacted context); empty: nothing is dropped
    """

    appends: Sequence[int]
    gens: Sequence[int]
    pauses_s: Sequence[float] = ()
    keeps: Sequence[int] = ()

    @property
    def turns(self) -> int:
        return len(self.appends)

    def prompts(self) -> Iterator[tuple[int, int]]:
        """Of each turn: the context it keeps, and its whole prompt."""
        context = 0
        for at, (append, gen) in enumerate(zip(self.appends, self.gens, strict=True)):
            if self.keeps and 0 <= self.keeps[at] < context:
                context = self.keeps[at]
            yield context, context + append
            context += append + gen

    @property
    def total_tokens(self) -> int:
        """Context at the end of a session that drops nothing."""
        return sum(self.appends) + sum(self.gens)


@dataclass(frozen=True, slots=True)
class SessionMeans:
    """Means over sessions of per-session means: the columns of the table in paper §7.

    context  tokens before a turn's append
    """

    sessions: int
    turns: float
    append: float
    gen: float
    total: float
    context: float


def session_means(sessions: Sequence[Session]) -> SessionMeans:
    """The table's row for a set of sessions; raises ValueError for none."""
    rows = []
    for session in sessions:
        count = session.turns
        contexts = sum(context for context, _ in session.prompts())
        append, gen = sum(session.appends) / count, sum(session.gens) / count
        rows.append((count, append, gen, session.total_tokens, contexts / count))
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return SessionMeans(len(rows), *means)


def session_counts(sessions: Sequence[Session]) -> TraceCounts:
    """A trace's counts, of sessions as they are simulated; a hit is what storage can hold: whole blocks of context.

    raises  ValueError for none
    """
    lengths = [session.turns for session in sessions]
    pairs = [pair for session in sessions for pair in session.prompts()]
    contexts, prompts = np.array(pairs, dtype=np.int64).T
    hits = contexts - contexts % BLOCK_TOKENS
    pauses = sorted(pause for session in sessions for pause in session.pauses_s[1:])
    return TraceCounts(
        sessions=len(sessions),
        turns=len(pairs),
        turns_mean=float(np.mean(lengths)),
        turns_median=float(np.median(lengths)),
        input_mean_tokens=float(prompts.mean()),
        input_median_tokens=float(np.median(prompts)),
        append_median_tokens=float(np.median(prompts - contexts)),
        output_mean_tokens=float(np.mean([gen for session in sessions for gen in session.gens])),
        token_hit_rate=float(hits.sum() / prompts.sum()),
        pause_median_s=median(pauses) if pauses else None,
        pause_p90_s=pauses[int(PAUSE_SHARE * len(pauses))] if pauses else None,
    )


def cut_at(session: Session, tokens_max: int) -> Session:
    """The turns whose context stays within `tokens_max` (paper §7, MaxLen); at least the first one's prompt is cut to
    fit, so that a session never vanishes."""
    count = 0
    for (_, prompt), gen in zip(session.prompts(), session.gens, strict=True):
        if prompt + gen > tokens_max:
            break
        count += 1
    if count == 0:
        gen = min(session.gens[0], max(1, tokens_max // 2))
        return Session(array("l", [max(1, tokens_max - gen)]), array("l", [gen]), session.pauses_s[:1])
    return Session(session.appends[:count], session.gens[:count], session.pauses_s[:count], session.keeps[:count])
