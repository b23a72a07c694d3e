"""What the reader and the writer need from a block store."""

from typing import Protocol

from dualpath.model.ids import BlockKey
from dualpath.storage_shim.outcomes import BlockHeader, BlockRead


class StorageBackend(Protocol):
    """A block store of one namespace. Calls block; the reader and the writer call from threads of their own."""

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        """Read one full block into `into` (layout.full_block_bytes long); misses are values, not errors."""
        ...

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        """Store one block, whole or not at all; a block that is there already is left as it is.

        raises  Refused(STORAGE_FULL) where there is no room, Broken(STORAGE_IO) where the device failed
        """
        ...

    def contains(self, key: BlockKey) -> bool:
        """Whether a block of this name is there (it may still prove corrupt when read)."""
        ...

    def close(self) -> None: ...
