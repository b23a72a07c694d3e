"""Counts what passes a backend: reads, writes, bytes, and misses by reason."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dualpath.model.errors import DualPathError
from dualpath.model.ids import BlockKey
from dualpath.storage_shim.outcomes import BlockHeader, BlockHit, BlockRead, MissReason
from dualpath.storage_shim.ports import StorageBackend


@dataclass(frozen=True, slots=True)
class StorageCounts:
    """Totals since the wrapper was made."""

    hits: int
    misses: Mapping[MissReason, int]
    read_bytes: int
    writes: int
    written_bytes: int
    write_errors: Mapping[str, int]


class MeteredBackend:
    """A backend with counters; safe to call from many threads."""

    def __init__(self, inner: StorageBackend) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._hits = self._read_bytes = self._writes = self._written_bytes = 0
        self._misses: Counter[MissReason] = Counter()
        self._errors: Counter[str] = Counter()

    def counts(self) -> StorageCounts:
        with self._lock:
            return StorageCounts(
                hits=self._hits,
                misses=dict(self._misses),
                read_bytes=self._read_bytes,
                writes=self._writes,
                written_bytes=self._written_bytes,
                write_errors=dict(self._errors),
            )

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        outcome = self._inner.read(key, into)
        with self._lock:
            if isinstance(outcome, BlockHit):
                self._hits += 1
                self._read_bytes += len(into)
            else:
                self._misses[outcome.reason] += 1
        return outcome

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        try:
            self._inner.write(header, payload)
        except DualPathError as error:
            with self._lock:
                self._errors[error.reason] += 1
            raise
        with self._lock:
            self._writes += 1
            self._written_bytes += len(payload)

    def contains(self, key: BlockKey) -> bool:
        return self._inner.contains(key)

    def close(self) -> None:
        self._inner.close()
