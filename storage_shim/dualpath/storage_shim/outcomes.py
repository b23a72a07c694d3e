"""What a block says of itself, and how a read of one can end. Plain values."""

from dataclasses import dataclass
from enum import StrEnum

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
