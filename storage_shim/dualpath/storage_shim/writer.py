"""Bounded writes of new full blocks, off the path of the turn that made them (paper §4.1: persisted at once)."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from dualpath.model.errors import DualPathError, Refused
from dualpath.storage_shim.outcomes import BlockHeader
from dualpath.storage_shim.ports import StorageBackend

RETRY_S = 0.5  # when a full queue may be asked again


class BlockWriter:
    """Writes blocks on `threads` threads; at most `queue_max` blocks wait or are being written."""

    def __init__(self, backend: StorageBackend, *, threads: int = 2, queue_max: int = 128) -> None:
        self._backend = backend
        self._queue_max = queue_max
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kv-write")
        self._lock = Lock()
        self._open = 0
        self.written = 0
        self.failed = 0

    @property
    def open_blocks(self) -> int:
        with self._lock:
            return self._open

    def submit(self, header: BlockHeader, payload: memoryview) -> "Future[None]":
        """Queue a block; `payload` must not change until the future is done.

        raises  Refused if queue_max blocks are open
        errors  (in the future) Refused(STORAGE_FULL), Broken(STORAGE_IO): this block is absent, others go on
        """
        with self._lock:
            if self._open >= self._queue_max:
                message = f"{self._open} blocks wait to be written, the bound is {self._queue_max}"
                raise Refused(message, retry_after_s=RETRY_S, reason="WRITE_QUEUE_FULL")
            self._open += 1
        return self._pool.submit(self._write, header, payload)

    def close(self) -> None:
        """Write what waits, then end the threads."""
        self._pool.shutdown(wait=True)

    def _write(self, header: BlockHeader, payload: memoryview) -> None:
        try:
            self._backend.write(header, payload)
        except DualPathError:
            with self._lock:
                self.failed += 1
            raise
        else:
            with self._lock:
                self.written += 1
        finally:
            with self._lock:
                self._open -= 1
