"""A line of turns in the order of their arrival numbers: a returned turn stands where it stood before (law I4)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from dualpath.model.ids import TurnId
from dualpath.scheduler.policy.snapshot import WaitingTurn

_GONE_MIN = 1024  # places before the head that are kept before the lists are cut


class Line:
    """Turns by arrival. Joining at the tail and leaving at the head cost the same in a line of any length.

    `_needed` and `_prompts` run beside the arrivals: tokens of HBM and of prompts up to each place, so that the prefix
    which some amount of HBM holds is found without walking it. Where a turn joins or leaves in the middle, they end
    there and are counted on when next asked for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = 0  # prompt tokens of the turns in line
        self._arrivals: list[int] = []
        self._head = 0  # the places before are gone
        self._turns: dict[int, WaitingTurn] = {}
        self._needed: list[int] = [0]  # up to and including place i - 1; one longer than what is counted
        self._prompts: list[int] = [0]

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[TurnId]:
        return (self._turns[arrival].turn_id for arrival in islice(self._arrivals, self._head, None))

    @property
    def head(self) -> WaitingTurn | None:
        return self._turns[self._arrivals[self._head]] if self._turns else None

    def join(self, turn: WaitingTurn) -> None:
        arrivals, arrival = self._arrivals, turn.arrival
        if self._turns and arrival < arrivals[-1]:
            at = bisect_left(arrivals, arrival, self._head)
            arrivals.insert(at, arrival)
            self._uncount(at)
        else:
            arrivals.append(arrival)
        self._turns[arrival] = turn
        self.tokens += turn.prompt_tokens

    def leave(self, arrival: int) -> None:
        at = self._index(arrival)
        self.tokens -= self._turns.pop(arrival).prompt_tokens
        if at > self._head:
            del self._arrivals[at]
            self._uncount(at)
            return
        self._head += 1
        if not self._turns or (self._head >= _GONE_MIN and 2 * self._head > len(self._arrivals)):
            self._cut()

    def place(self, arrival: int) -> int:
        """1 for the head."""
        return self._index(arrival) - self._head + 1

    def waiting(self) -> "Waiting":
        return Waiting(self)

    def at(self, index: int) -> WaitingTurn:
        return self._turns[self._arrivals[self._head + index]]

    def prompt_tokens_within(self, hbm_tokens: int) -> int:
        """Prompt tokens of the longest prefix of the line whose turns need no more than `hbm_tokens` together."""
        arrivals, needed, head = self._arrivals, self._needed, self._head
        if len(needed) <= head:  # the head moved past what was counted; only differences matter
            needed = self._needed = [0] * (head + 1)
            self._prompts = [0] * (head + 1)
        limit = needed[head] + hbm_tokens
        prompts = self._prompts
        while len(needed) <= len(arrivals) and needed[-1] <= limit:
            turn = self._turns[arrivals[len(needed) - 1]]
            needed.append(needed[-1] + turn.total_tokens_max)
            prompts.append(prompts[-1] + turn.prompt_tokens)
        end = bisect_right(needed, limit, head) - 1
        return prompts[max(end, head)] - prompts[head]

    def _uncount(self, at: int) -> None:
        del self._needed[at + 1 :], self._prompts[at + 1 :]

    def _cut(self) -> None:
        """Forget the places before the head."""
        head = self._head
        del self._arrivals[:head]
        del self._needed[:head], self._prompts[:head]
        if not self._needed:
            self._needed, self._prompts = [0], [0]
        self._head = 0

    def _index(self, arrival: int) -> int:
        arrivals, head = self._arrivals, self._head
        if arrival in self._turns:
            return head if arrivals[head] == arrival else bisect_left(arrivals, arrival, head)
        raise KeyError(f"arrival {arrival} is not in {self.name}")


class Waiting(Sequence[WaitingTurn]):
    """A line as a policy sees it, looked up turn by turn: a fetch that places 8 of 50,000 touches 9."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[WaitingTurn]:
        line = self._line
        return (line._turns[arrival] for arrival in islice(line._arrivals, line._head, None))

    def prompt_tokens_within(self, hbm_tokens: int) -> int:
        """As of the line; policy.snapshot.prompt_tokens_within asks for it."""
        return self._line.prompt_tokens_within(hbm_tokens)

    @overload
    def __getitem__(self, index: int) -> WaitingTurn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WaitingTurn]: ...
    def __getitem__(self, index: int | slice) -> WaitingTurn | Sequence[WaitingTurn]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"place {index} of a line of {len(self)}")
        return self._line.at(index if index >= 0 else index + len(self))
