"""Emulated NICs: real bytes wait as they would on a link of a given rate (paper §3: one storage NIC per node)."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from dualpath.model.ids import BlockKey
from dualpath.storage_shim.outcomes import BlockHeader, BlockHit, BlockRead
from dualpath.storage_shim.ports import StorageBackend


class Pacer(Protocol):
    def take(self, nbytes: int) -> None:
        """Account for `nbytes` and block until the link has carried them."""
        ...


class LinkPacer:
    """A link that carries `bytes_per_s` first come, first served; without a rate it only counts.

    Each taker waits until the link has carried everything taken before and its own bytes: two takers share the rate,
    and an idle link saves up nothing.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._busy_until_s = 0.0
        self.taken_bytes = 0

    def take(self, nbytes: int) -> None:
        with self._lock:
            self.taken_bytes += nbytes
            if self.bytes_per_s is None:
                return
            now = self._clock()
            self._busy_until_s = max(now, self._busy_until_s) + nbytes / self.bytes_per_s
            wait_s = self._busy_until_s - now
        self._sleep(wait_s)


class PacedBackend:
    """A backend behind a storage NIC: payloads pass the NIC in the direction of the call."""

    def __init__(self, inner: StorageBackend, *, reads: Pacer, writes: Pacer) -> None:
        self._inner = inner
        self._reads = reads
        self._writes = writes

    def read(self, key: BlockKey, into: memoryview) -> BlockRead:
        outcome = self._inner.read(key, into)
        if isinstance(outcome, BlockHit):
            self._reads.take(len(into))
        return outcome

    def write(self, header: BlockHeader, payload: memoryview) -> None:
        self._writes.take(len(payload))
        self._inner.write(header, payload)

    def contains(self, key: BlockKey) -> bool:
        return self._inner.contains(key)

    def close(self) -> None:
        self._inner.close()
