"""How much waits in lines, of all turns and of each tenant: what the bounds of intake are held against."""

from collections import defaultdict
from dataclasses import dataclass

from dualpath.model.ids import BLOCK_KEY_BYTES
from dualpath.model.turn import Turn

TOKEN_BYTES = 4


@dataclass(slots=True)
class Sums:
    turns: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, turn: Turn, sign: int) -> None:
        self.turns += sign
        self.tokens += sign * turn.prompt_tokens
        self.bytes += sign * (TOKEN_BYTES * turn.miss_tokens + BLOCK_KEY_BYTES * len(turn.hit_keys))


class WaitingSums:
    """Tenants without a waiting turn are forgotten."""

    def __init__(self) -> None:
        self.all = Sums()
        self._tenants: defaultdict[str, Sums] = defaultdict(Sums)

    def of(self, tenant: str) -> Sums:
        return self._tenants.get(tenant) or Sums()

    def join(self, turn: Turn) -> None:
        self.all.add(turn, 1)
        self._tenants[turn.tenant].add(turn, 1)

    def leave(self, turn: Turn) -> None:
        self.all.add(turn, -1)
        sums = self._tenants[turn.tenant]
        sums.add(turn, -1)
        if not sums.turns:
            del self._tenants[turn.tenant]
