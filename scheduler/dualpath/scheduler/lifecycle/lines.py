"""A line of turns in the order of their keys: their arrival numbers, unless tenants share fairly (lifecycle.order). A
returned turn stands where it stood before (law I4).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from dualpath.model.ids import TurnId
from dualpath.scheduler.policy.snapshot import WaitingTurn

_GONE_MIN = 1024  # places before the head that are kept before the lists are cut


class Line:
    """Turns by key. Joining at the tail and leaving at the head cost the same in a line of any length.

    `_needed` and `_prompts` run beside the keys: tokens of HBM and of prompts up to each place, so that the prefix
    which some amount of HBM holds is found without walking it. Where a turn joins or leaves in the middle, they end
    there and are counted on when next asked for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = 0  # prompt tokens of the turns in line
        self._keys: list[int] = []
        self._head = 0  # the places before are gone
        self._turns: dict[int, WaitingTurn] = {}
        self._needed: list[int] = [0]  # up to and including place i - 1; one longer than what is counted
        self._prompts: list[int] = [0]

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[TurnId]:
        return (self._turns[key].turn_id for key in islice(self._keys, self._head, None))

    @property
    def head(self) -> WaitingTurn | None:
        return self._turns[self._keys[self._head]] if self._turns else None

    def __contains__(self, key: int) -> bool:
        return key in self._turns

    def join(self, turn: WaitingTurn, key: int) -> bool:
        """True where the turn is the head now."""
        keys = self._keys
        if self._turns and key < keys[-1]:
            at = bisect_left(keys, key, self._head)
            keys.insert(at, key)
            self._uncount(at)
        else:
            at = len(keys)
            keys.append(key)
        self._turns[key] = turn
        self.tokens += turn.prompt_tokens
        return at == self._head

    def overtake(self, key: int, count: int) -> None:
        """So many turns behind this one were placed before it."""
        turn = self._turns[key]
        self._turns[key] = turn._replace(overtaken=turn.overtaken + count)

    def leave(self, key: int) -> None:
        at = self._index(key)
        self.tokens -= self._turns.pop(key).prompt_tokens
        if at > self._head:
            del self._keys[at]
            self._uncount(at)
            return
        self._head += 1
        if not self._turns or (self._head >= _GONE_MIN and 2 * self._head > len(self._keys)):
            self._cut()

    def place(self, key: int) -> int:
        """1 for the head."""
        return self._index(key) - self._head + 1

    def waiting(self) -> "Waiting":
        return Waiting(self)

    def at(self, index: int) -> WaitingTurn:
        return self._turns[self._keys[self._head + index]]

    def prompt_tokens_within(self, hbm_tokens: int) -> int:
        """Prompt tokens of the longest prefix of the line whose turns need no more than `hbm_tokens` together."""
        keys, needed, head = self._keys, self._needed, self._head
        if len(needed) <= head:  # the head moved past what was counted; only differences matter
            needed = self._needed = [0] * (head + 1)
            self._prompts = [0] * (head + 1)
        limit = needed[head] + hbm_tokens
        prompts = self._prompts
        while len(needed) <= len(keys) and needed[-1] <= limit:
            turn = self._turns[keys[len(needed) - 1]]
            needed.append(needed[-1] + turn.total_tokens_max)
            prompts.append(prompts[-1] + turn.prompt_tokens)
        end = bisect_right(needed, limit, head) - 1
        return prompts[max(end, head)] - prompts[head]

    def _uncount(self, at: int) -> None:
        del self._needed[at + 1 :], self._prompts[at + 1 :]

    def _cut(self) -> None:
        """Forget the places before the head."""
        head = self._head
        del self._keys[:head]
        del self._needed[:head], self._prompts[:head]
        if not self._needed:
            self._needed, self._prompts = [0], [0]
        self._head = 0

    def _index(self, key: int) -> int:
        keys, head = self._keys, self._head
        if key in self._turns:
            return head if keys[head] == key else bisect_left(keys, key, head)
        raise KeyError(f"key {key} is not in {self.name}")


class Waiting(Sequence[WaitingTurn]):
    """A line as a policy sees it, looked up turn by turn: a fetch that places 8 of 50,000 touches 9."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[WaitingTurn]:
        line = self._line
        return (line._turns[key] for key in islice(line._keys, line._head, None))

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
