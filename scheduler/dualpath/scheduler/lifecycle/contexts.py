"""The context index: which blocks are committed, and their chains. A hint, not a promise: storage decides."""

from collections.abc import Sequence

from dualpath.model.ids import ROOT_KEY, BlockKey
from dualpath.scheduler.lifecycle.changes import ChangeSet, DropContext, Operation, PutContext


class ContextIndex:
    """block key -> (parent, tokens up to its end), oldest first; at most `contexts_max` blocks."""

    def __init__(self, *, contexts_max: int = 1 << 20) -> None:
        self._contexts_max = contexts_max
        self._blocks: dict[BlockKey, tuple[BlockKey, int]] = {}
        self._unstored: list[Operation] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def restore(self, blocks: dict[BlockKey, tuple[BlockKey, int]]) -> None:
        self._blocks = dict(blocks)

    def snapshot(self) -> dict[BlockKey, tuple[BlockKey, int]]:
        return dict(self._blocks)

    def tokens_at(self, key: BlockKey) -> int | None:
        """Tokens up to the end of block `key`, None where it is unknown."""
        found = self._blocks.get(key)
        return None if found is None else found[1]

    def chain(self, key: BlockKey) -> tuple[BlockKey, ...] | None:
        """Keys from the session's root to `key`; None if a link is missing."""
        keys: list[BlockKey] = []
        while key != ROOT_KEY:
            found = self._blocks.get(key)
            if found is None:
                return None
            keys.append(key)
            key = found[0]
        return tuple(reversed(keys))

    def longest_prefix(self, keys: Sequence[BlockKey]) -> int:
        """How many of the chain's first blocks are committed."""
        for count, key in enumerate(keys):
            if key not in self._blocks:
                return count
        return len(keys)

    def unstored(self) -> ChangeSet:
        """What is not in the store yet; from then on it counts as stored."""
        operations, self._unstored = self._unstored, []
        return ChangeSet(tuple(operations))

    def extend(self, hit_keys: Sequence[BlockKey], new_keys: Sequence[BlockKey], block_tokens: int) -> None:
        """Take in the blocks a commit added. The whole chain becomes the youngest, so it is evicted last."""
        operations = self._unstored
        parent, tokens = ROOT_KEY, 0
        for key in (*hit_keys, *new_keys):
            tokens += block_tokens
            known = self._blocks.pop(key, None)
            self._blocks[key] = (parent, tokens)
            if known is None:
                operations.append(PutContext(key, parent, tokens))
            parent = key
        while len(self._blocks) > self._contexts_max:
            oldest = next(iter(self._blocks))
            del self._blocks[oldest]
            operations.append(DropContext(oldest))

    def forget(self, keys: Sequence[BlockKey]) -> None:
        """Blocks that storage has lost."""
        self._unstored += [DropContext(key) for key in keys if self._blocks.pop(key, None) is not None]
