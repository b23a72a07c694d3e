"""Which of several addresses to dial next, and how long to wait before: used by clients and by agents.

One of the addresses is the active scheduler's. A round over all of them is quick, so that one which just became active
is found soon; only after a whole round without success is there a longer pause, so that nobody is flooded.
"""

import random
from collections.abc import Sequence

GAP_S = 0.05  # between two addresses of one round
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 0.5  # after a round; doubles from the first to the last


def split_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """`a:1,b:2` or a sequence of such; raises ValueError if there is none."""
    parts = addresses.split(",") if isinstance(addresses, str) else addresses
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise ValueError(f"addresses is {addresses!r}, wanted host:port, or several separated by commas")
    return found


class Rotation:
    """`address` is the one to dial; call `good` when it was, `move` when it was not."""

    def __init__(self, addresses: str | Sequence[str], *, chance: random.Random | None = None) -> None:
        self.addresses = split_addresses(addresses)
        self._chance = chance or random.Random()
        self._at = 0
        self._tried = 0
        self._backoff_s = BACKOFF_FIRST_S

    @property
    def address(self) -> str:
        return self.addresses[self._at]

    @property
    def rounds(self) -> int:
        """Whole rounds without success."""
        return self._tried // len(self.addresses)

    def good(self) -> None:
        self._tried, self._backoff_s = 0, BACKOFF_FIRST_S

    def move(self) -> float:
        """Go on to the next address; returns how many seconds to wait before dialling it."""
        self._at = (self._at + 1) % len(self.addresses)
        self._tried += 1
        if self._tried % len(self.addresses):
            return GAP_S
        wait_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, BACKOFF_MAX_S)
        return wait_s * self._chance.uniform(0.5, 1.5)
