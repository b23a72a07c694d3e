"""What the reader and the writer need from a block store, and the outcomes of a read."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dualpath.model.ids import BlockKey


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a block says of itself: its key, its parent in the chain, and the tokens whose KV it holds."""

    key: BlockKey
    parent: BlockKey
    tokens: tuple[int, ...]


class MissReason(StrEnum):
    """Why a block cannot be had. None of them ever gives bytes to the caller."""

    ABSENT = "absent"
    CORRUPT = "corrupt"  # checksum or magic is wrong
    SHORT = "short"  # the file ends early
    WRONG_KEY = "wrong_key"  # right bytes under another block's name
    WRONG_LAYOUT = "wrong_layout"
    IO_ERROR = "io_error"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class BlockHit:
    """The caller's memory holds the block's payload."""

    header: BlockHeader


@dataclass(frozen=True, slots=True)
class BlockMiss:
    """The caller's memory holds nothing that may be used."""

    reason: MissReason
    message: str = ""


BlockRead = BlockHit | BlockMiss


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
