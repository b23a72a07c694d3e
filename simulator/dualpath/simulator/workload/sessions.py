"""What a simulated session is: how many tokens each turn appends and generates, and how long its tools take."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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


def cut_at(session: Session, tokens_max: int) -> Session:
    """The turns whose context stays within `tokens_max` (paper §7, MaxLen); at least the first one's prompt is cut to
    fit, so that a session never vanishes."""
    context = 0
    count = 0
    for append, gen in zip(session.appends, session.gens, strict=True):
        context += append + gen
        if context > tokens_max:
            break
        count += 1
    if count == 0:
        gen = min(session.gens[0], max(1, tokens_max // 2))
        return Session(array("l", [max(1, tokens_max - gen)]), array("l", [gen]), session.pauses_s[:1])
    return Session(session.appends[:count], session.gens[:count], session.pauses_s[:count], session.keeps[:count])
