"""A line of turns in the order of their arrival numbers: a returned turn stands where it stood before (law I4)."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from dualpath.model.ids import TurnId
from dualpath.scheduler.policy.snapshot import WaitingTurn


class Line:
    """Turns by arrival. Joining at the tail and leaving at the head are the common cases."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._arrivals: list[int] = []
        self._turns: dict[int, TurnId] = {}
        self.tokens = 0  # prompt tokens of the turns in line

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[TurnId]:
        return (self._turns[arrival] for arrival in self._arrivals)

    def join(self, arrival: int, turn_id: TurnId, tokens: int) -> None:
        if self._arrivals and arrival < self._arrivals[-1]:
            self._arrivals.insert(bisect_left(self._arrivals, arrival), arrival)
        else:
            self._arrivals.append(arrival)
        self._turns[arrival] = turn_id
        self.tokens += tokens

    def leave(self, arrival: int, tokens: int) -> None:
        del self._arrivals[self._index(arrival)], self._turns[arrival]
        self.tokens -= tokens

    def place(self, arrival: int) -> int:
        """1 for the head."""
        return self._index(arrival) + 1

    def waiting(self, look: Callable[[TurnId], WaitingTurn]) -> "Waiting":
        return Waiting(self, look)

    def at(self, index: int) -> TurnId:
        return self._turns[self._arrivals[index]]

    def _index(self, arrival: int) -> int:
        index = bisect_left(self._arrivals, arrival)
        if index == len(self._arrivals) or self._arrivals[index] != arrival:
            raise KeyError(f"arrival {arrival} is not in {self.name}")
        return index


class Waiting(Sequence[WaitingTurn]):
    """A line as a policy sees it, looked up turn by turn: a fetch that places 8 of 50,000 touches 9."""

    def __init__(self, line: Line, look: Callable[[TurnId], WaitingTurn]) -> None:
        self._line = line
        self._look = look

    def __len__(self) -> int:
        return len(self._line)

    @overload
    def __getitem__(self, index: int) -> WaitingTurn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WaitingTurn]: ...
    def __getitem__(self, index: int | slice) -> WaitingTurn | Sequence[WaitingTurn]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._look(self._line.at(index))
