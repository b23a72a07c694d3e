"""Blocks in this process's memory: for tests and the simulator, held to the same behaviour as the others."""

import threading

from dualpath.model.ids import BlockKey, Namespace
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.blocks import check_block
from dualpath.storage_shim.codec import BlockFormat
from dualpath.storage_shim.outcomes import BlockHeader, BlockMiss, BlockRead, MissReason


class MemoryBackend:
    """Keeps encoded blocks, so that a read passes the same checks as one from disk."""

    def __init__(self, namespace: Namespace, layout: BlockLayout) -> None:
        self._format = BlockFormat(namespace, layout)
        self._blocks: dict[BlockKey, bytes] = {}
        self._lock = threading.Lock()

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        check_block(into, self._format.layout)
        with self._lock:
            block = self._blocks.get(key)
        if block is None:
            return BlockMiss(MissReason.ABSENT)
        if len(block) < self._format.file_bytes:
            return BlockMiss(MissReason.SHORT, f"{len(block)} bytes, wanted {self._format.file_bytes}")
        view, header_end = memoryview(block), self._format.header_bytes
        payload_end = header_end + len(into)
        into[:] = view[header_end:payload_end]
        return self._format.verify(key, view[:header_end], into, view[payload_end : self._format.file_bytes])

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        check_block(payload, self._format.layout)
        encoded = self._format.encode_header(header)
        block = b"".join((encoded, payload, self._format.checksum(encoded, payload)))
        with self._lock:
            self._blocks.setdefault(header.key, block)

    def contains(self, key: BlockKey) -> bool:
        with self._lock:
            return key in self._blocks

    def close(self) -> None:
        return None
