"""The slots of a decode engine: KV of admitted turns in "HBM", by name. One class for every NumPy engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dualpath.engine_agent.engines.checks import check_full_block, check_index
from dualpath.model.errors import Rejected
from dualpath.model.layout import BlockLayout


class Slot(Protocol):
    """kv [num_layers, tokens_max, ...], of which the first `tokens` hold something."""

    tokens: int

    @property
    def kv(self) -> npt.NDArray[np.generic]: ...


S = TypeVar("S", bound=Slot)


@dataclass(eq=False)
class Slots(Generic[S]):
    """Admitted turns by name."""

    _entries: dict[str, S] = field(default_factory=dict)

    def check_free(self, name: str) -> None:
        """raises Rejected if the name is taken: two attempts would write each other's KV"""
        if name in self._entries:
            raise Rejected(f"slot {name} is admitted already", field="slot", reason="SLOT_TAKEN")

    def put(self, name: str, entry: S) -> None:
        self._entries[name] = entry

    def get(self, name: str) -> S:
        entry = self._entries.get(name)
        if entry is None:
            raise Rejected(f"slot {name} is not admitted to this engine", field="slot", reason="UNKNOWN_SLOT")
        return entry

    def batch(self, names: Sequence[str]) -> list[S]:
        """The entries of one decode step; raises Rejected, before anything changed, for one that cannot take it."""
        if len(set(names)) != len(names):
            raise Rejected("a decode step names a slot twice", field="slots")
        entries = [self.get(name) for name in names]
        for name, entry in zip(names, entries, strict=True):
            if entry.tokens >= entry.kv.shape[1]:
                message = f"slot {name} is full: {entry.tokens} tokens have KV"
                raise Rejected(message, field="slots", reason="SLOT_FULL")
        return entries

    def copy_block(self, name: str, index: int, into: memoryview, layout: BlockLayout) -> None:
        """Device -> host: block `index` of all layers, [num_layers, block_tokens, bytes_per_token_layer]."""
        entry = self.get(name)
        check_index(index, entry.tokens, layout)
        check_full_block(into, layout)
        start = index * layout.block_tokens
        kv = entry.kv[:, start : start + layout.block_tokens]
        np.frombuffer(into, kv.dtype).reshape(kv.shape)[:] = kv

    def release(self, name: str) -> None:
        self._entries.pop(name, None)
