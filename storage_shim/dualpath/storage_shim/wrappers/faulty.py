"""Faults on purpose, by plan or by chance: what a bad disk does, for tests."""

import random
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum

from dualpath.model.errors import Broken, Refused
from dualpath.model.ids import BlockKey
from dualpath.storage_shim.outcomes import BlockHeader, BlockMiss, BlockRead, MissReason
from dualpath.storage_shim.ports import StorageBackend


class Fault(StrEnum):
    ABSENT = "absent"
    CORRUPT = "corrupt"
    IO_ERROR = "io_error"
    FULL = "full"
    SLOW = "slow"


class FaultyBackend:
    """Hurts the nth read or write as planned (counting from 0), and others with probability `rate`."""

    def __init__(
        self,
        inner: StorageBackend,
        *,
        reads: Mapping[int, Fault] | None = None,
        writes: Mapping[int, Fault] | None = None,
        rate: float = 0.0,
        chance: random.Random | None = None,
        stall: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._reads = dict(reads or {})
        self._writes = dict(writes or {})
        self._rate = rate
        self._chance = chance or random.Random(0)
        self._stall = stall
        self._lock = threading.Lock()
        self._read_count = self._write_count = 0

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        with self._lock:
            fault = self._reads.get(self._read_count)
            self._read_count += 1
            if fault is None and self._chance.random() < self._rate:
                fault = self._chance.choice((Fault.ABSENT, Fault.CORRUPT, Fault.IO_ERROR))
        match fault:
            case Fault.ABSENT:
                return BlockMiss(MissReason.ABSENT, "planned")
            case Fault.IO_ERROR:
                return BlockMiss(MissReason.IO_ERROR, "planned")
            case Fault.CORRUPT:
                into[:] = bytes(len(into))  # what a torn read leaves behind
                return BlockMiss(MissReason.CORRUPT, "planned")
            case Fault.SLOW:
                self._stall()
        return self._inner.read(key, into)

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        with self._lock:
            fault = self._writes.get(self._write_count)
            self._write_count += 1
        match fault:
            case Fault.FULL:
                raise Refused("no room (planned)", retry_after_s=1.0, reason="STORAGE_FULL")
            case Fault.IO_ERROR | Fault.CORRUPT:
                raise Broken("device failed (planned)", reason="STORAGE_IO")
            case Fault.SLOW:
                self._stall()
        self._inner.write(header, payload)

    def contains(self, key: BlockKey) -> bool:
        return self._inner.contains(key)

    def close(self) -> None:
        self._inner.close()
