"""Bytes of a stored block: header, payload, checksum (paper §A.5; law I6).

    magic 8 | version u32 | header bytes u32 | payload bytes u64 | key 32 | parent 32 | layout hash 16
    | namespace digest 16 | tokens n u32 | token ids n x u32 | payload | xxh3_128 16

All numbers little endian. The checksum covers everything before it, so a flipped bit anywhere is a miss. The key is
compared with the one asked for: right bytes under another name are a miss too.
"""

import hashlib
import struct
from dataclasses import dataclass

import xxhash

from dualpath.model.ids import BlockKey, Namespace
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.outcomes import BlockHeader, BlockHit, BlockMiss, BlockRead, MissReason

MAGIC = b"DPKVBLK\x01"
VERSION = 1
CHECKSUM_BYTES = 16
_FIXED = struct.Struct("<8sIIQ32s32s16s16sI")


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Encodes and checks the blocks of one namespace and layout."""

    namespace: Namespace
    layout: BlockLayout

    @property
    def header_bytes(self) -> int:
        """The same for every block: a full block has block_tokens tokens."""
        return _FIXED.size + 4 * self.layout.block_tokens

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.layout.full_block_bytes + CHECKSUM_BYTES

    def encode_header(self, header: BlockHeader) -> bytes:
        fixed = _FIXED.pack(
            MAGIC,
            VERSION,
            self.header_bytes,
            self.layout.full_block_bytes,
            header.key,
            header.parent,
            self.layout.layout_hash.encode(),
            self._namespace_digest(),
            len(header.tokens),
        )
        return fixed + struct.pack(f"<{len(header.tokens)}I", *header.tokens)

    def checksum(self, header: bytes, payload: memoryview) -> bytes:
        digest = xxhash.xxh3_128(header)
        digest.update(payload)
        return digest.digest()

    def verify(self, wanted: BlockKey, header: memoryview, payload: memoryview, checksum: memoryview) -> BlockRead:
        """A hit only if every byte is what the writer of block `wanted` meant."""
        if self.checksum(bytes(header), payload) != bytes(checksum):
            return BlockMiss(MissReason.CORRUPT, "checksum differs")
        magic, version, _, payload_bytes, key, parent, layout_hash, namespace, count = _FIXED.unpack_from(header)
        if magic != MAGIC or version != VERSION:
            return BlockMiss(MissReason.CORRUPT, f"magic {magic!r} version {version}")
        if layout_hash != self.layout.layout_hash.encode() or payload_bytes != len(payload):
            return BlockMiss(MissReason.WRONG_LAYOUT, f"layout {layout_hash.decode(errors='replace')}")
        if key != wanted or namespace != self._namespace_digest() or count != self.layout.block_tokens:
            return BlockMiss(MissReason.WRONG_KEY, f"holds block {key.hex()[:16]}")
        tokens = struct.unpack_from(f"<{count}I", header, _FIXED.size)
        return BlockHit(BlockHeader(BlockKey(key), BlockKey(parent), tokens))

    def _namespace_digest(self) -> bytes:
        return hashlib.sha256(self.namespace.encode()).digest()[:16]
