"""The PE buffer or DE buffer of a node (paper §4.1): host memory with a hard bound, given out in order of asking."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from dualpath.model.errors import Refused, Rejected


@dataclass(slots=True, eq=False)
class Buffer:
    """Reserved memory of one attempt. Use `memory`; give it back with BufferPool.release."""

    memory: memoryview
    nbytes: int
    released: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    nbytes: int
    granted: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BufferPool:
    """Bounded memory: at most `capacity_bytes` are out at any time, at most `waiters_max` attempts wait.

    First come, first served: a small reservation never overtakes a large one, so nobody starves.
    """

    def __init__(self, capacity_bytes: int, *, name: str, waiters_max: int = 4096) -> None:
        self.capacity_bytes = capacity_bytes
        self.name = name
        self._waiters_max = waiters_max
        self._waiters: deque[_Waiter] = deque()
        self.used_bytes = 0
        self.peak_bytes = 0

    async def reserve(self, nbytes: int) -> Buffer:
        """Memory of `nbytes` bytes, waiting until it is free; a cancelled wait leaves nothing reserved.

        raises  Rejected if the pool could never hold it, Refused if waiters_max attempts wait already
        """
        if nbytes > self.capacity_bytes:
            message = f"{self.name} holds {self.capacity_bytes} bytes, the turn needs {nbytes}"
            raise Rejected(message, reason="BUFFER_TOO_SMALL", precondition=True)
        if len(self._waiters) >= self._waiters_max:
            raise Refused(f"{len(self._waiters)} attempts wait for the {self.name}", retry_after_s=1.0)
        if self._waiters or self.used_bytes + nbytes > self.capacity_bytes:
            await self._wait(nbytes)
        else:
            self._take(nbytes)
        return Buffer(memoryview(bytearray(nbytes)), nbytes)

    def release(self, buffer: Buffer) -> None:
        """Give memory back; releasing twice changes nothing."""
        if buffer.released:
            return
        buffer.released = True
        buffer.memory = memoryview(b"")
        self.used_bytes -= buffer.nbytes
        self._grant()

    async def _wait(self, nbytes: int) -> None:
        waiter = _Waiter(nbytes)
        self._waiters.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.used_bytes -= nbytes  # granted in the same tick as the cancellation
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            self._grant()
            raise

    def _take(self, nbytes: int) -> None:
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _grant(self) -> None:
        while self._waiters and self.used_bytes + self._waiters[0].nbytes <= self.capacity_bytes:
            waiter = self._waiters.popleft()
            if not waiter.granted.done():  # else its wait was cancelled a moment ago
                self._take(waiter.nbytes)
                waiter.granted.set_result(None)
