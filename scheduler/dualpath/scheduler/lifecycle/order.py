"""In which order a line is served: exactly by arrival (the paper, and the default), or fairly among tenants.

The fair order is start-time fair queueing. A virtual time stands at the tag of the turn that was placed last. A turn's
tag is that time, or where its tenant has turns before it, where the last of them ends: its own tag plus its prompt
tokens, divided by the tenant's weight, which doubles with each step of `priority`. Lines are sorted by tag, then by
arrival; so a tenant that just came stands behind nobody's backlog, and nobody starves, since time goes on for all.

A tag never changes, so a turn that returns finds its old place. One exception: a turn that too many later ones have
gone before is promoted to the head.
"""

import heapq
from collections.abc import Iterable
from enum import StrEnum

from dualpath.model.ids import TurnId
from dualpath.model.turn import Turn

PRIORITY_MAX = 3
TENANTS_KEPT_MAX = 10_000  # tenants remembered beyond those that are ahead of the virtual time
_SCALE = 1 << PRIORITY_MAX


class Order(StrEnum):
    FIFO = "fifo"
    FAIR = "fair"


class FairOrder:
    """Tags of turns. Not used where the order is FIFO: tags are 0 then, and lines are sorted by arrival."""

    def __init__(self) -> None:
        self.now = 0  # virtual
        self._ends: dict[str, int] = {}

    def tag(self, tenant: str, priority: int, prompt_tokens: int) -> int:
        """The tag of a turn that is accepted now."""
        tag = max(self.now, self._ends.get(tenant, 0))
        self._ends[tenant] = tag + max(1, prompt_tokens) * (_SCALE >> priority)
        if len(self._ends) > TENANTS_KEPT_MAX:
            self._ends = {name: end for name, end in self._ends.items() if end > self.now}
        return tag

    def placed(self, turn: Turn) -> None:
        """The turn was given to a prefill engine."""
        self.now = max(self.now, turn.tag)

    def restore(self, turns: Iterable[Turn], waiting: Iterable[Turn]) -> None:
        """What the turns of a rebuilt cell say of the time and of their tenants."""
        self.now = min((turn.tag for turn in waiting), default=max((turn.tag for turn in turns), default=0))
        for turn in turns:
            end = turn.tag + max(1, turn.prompt_tokens) * (_SCALE >> turn.priority)
            self._ends[turn.tenant] = max(end, self._ends.get(turn.tenant, 0))


class Oldest:
    """The turns of one line by arrival, whatever its order."""

    def __init__(self) -> None:
        self._turns: dict[int, TurnId] = {}
        self._heap: list[int] = []  # those that have left are dropped when they come up

    def join(self, turn: Turn) -> None:
        self._turns[turn.arrival] = turn.turn_id
        heapq.heappush(self._heap, turn.arrival)

    def leave(self, turn: Turn) -> None:
        self._turns.pop(turn.arrival, None)

    def first(self) -> TurnId | None:
        heap = self._heap
        while heap and heap[0] not in self._turns:
            heapq.heappop(heap)
        return self._turns[heap[0]] if heap else None
