"""Bounded reads of hit blocks: prepare, submit, wait. What is submitted and not done is the node's read queue (read_q).

Requests are served first in, first out, a few blocks at a time on threads of the reader's own: the blocks of an older
turn go before those of a younger one, as on the FIFO of a storage NIC.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from dualpath.model.errors import BlockSizeError, Refused
from dualpath.model.ids import BlockKey
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.blocks import block_views
from dualpath.storage_shim.outcomes import BlockHit, BlockMiss, BlockRead, MissReason
from dualpath.storage_shim.ports import StorageBackend

RETRY_S = 0.5  # when a full queue may be asked again


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Hit blocks of one turn, in chain order, and the memory for them, block after block."""

    keys: tuple[BlockKey, ...]
    blocks: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """`good_blocks` blocks from the start are whole and right; what lies behind the first miss may not be used."""

    good_blocks: int
    misses: tuple[tuple[int, BlockMiss], ...]


class ReadTicket:
    """One submitted request. Its future is done when no thread touches the request's memory any more."""

    def __init__(self, request: ReadRequest) -> None:
        self.request = request
        self.future: Future[ReadOutcome] = Future()
        self.future.set_running_or_notify_cancel()
        self.next_block = 0
        self.open_blocks = len(request.keys)
        self.cancelled = False
        self.misses: dict[int, BlockMiss] = {}

    def cancel(self) -> None:
        """Read no further blocks; those in service finish first. Cancelling twice, or too late, is fine."""
        self.cancelled = True


class BlockReader:
    """Reads blocks on `threads` threads; at most `requests_max` requests wait."""

    def __init__(
        self, backend: StorageBackend, layout: BlockLayout, *, threads: int = 4, requests_max: int = 4096
    ) -> None:
        self._backend = backend
        self._layout = layout
        self._requests_max = requests_max
        self._waiting: deque[ReadTicket] = deque()
        self._state = threading.Condition()
        self._outstanding_blocks = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, name=f"kv-read-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def read_queue_tokens(self) -> int:
        """Tokens of blocks submitted and not done: the paper's read_q of this node."""
        with self._state:
            return self._outstanding_blocks * self._layout.block_tokens

    def prepare(self, keys: Sequence[BlockKey], into: memoryview) -> ReadRequest:
        """raises BlockSizeError unless `into` holds exactly len(keys) full blocks"""
        blocks = tuple(block_views(into, self._layout))
        if len(blocks) != len(keys):
            message = (
                f"memory has {len(into)} bytes, {len(keys)} blocks want {len(keys) * self._layout.full_block_bytes}"
            )
            raise BlockSizeError(message)
        return ReadRequest(tuple(keys), blocks)

    def submit(self, request: ReadRequest) -> ReadTicket:
        """raises Refused if requests_max requests wait already"""
        ticket = ReadTicket(request)
        with self._state:
            if self._closed:
                raise Refused("the reader is closed", retry_after_s=RETRY_S, reason="READER_CLOSED")
            if len(self._waiting) >= self._requests_max:
                message = f"{len(self._waiting)} reads wait, the bound is {self._requests_max}"
                raise Refused(message, retry_after_s=RETRY_S, reason="READ_QUEUE_FULL")
            if request.keys:
                self._outstanding_blocks += len(request.keys)
                self._waiting.append(ticket)
                self._state.notify_all()
        if not request.keys:
            ticket.future.set_result(ReadOutcome(0, ()))
        return ticket

    def wait(self, ticket: ReadTicket, timeout_s: float | None = None) -> ReadOutcome:
        """Block until a request is done; raises TimeoutError."""
        return ticket.future.result(timeout_s)

    def close(self) -> None:
        """Cancel what waits, finish what is in service, end the threads."""
        with self._state:
            self._closed = True
            for ticket in self._waiting:
                ticket.cancelled = True
            self._state.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._state:
                while not self._waiting and not self._closed:
                    self._state.wait()
                if not self._waiting:
                    return
                ticket = self._waiting[0]
                index = ticket.next_block
                ticket.next_block += 1
                if ticket.next_block == len(ticket.request.keys):
                    self._waiting.popleft()
                cancelled = ticket.cancelled
            self._settle(ticket, index, self._read(ticket, index, cancelled))

    def _read(self, ticket: ReadTicket, index: int, cancelled: bool) -> BlockRead:
        if cancelled:
            return BlockMiss(MissReason.CANCELLED)
        try:
            return self._backend.read(ticket.request.keys[index], ticket.request.blocks[index])
        except Exception as error:  # a backend's own fault is a miss like any other: the thread must live on
            return BlockMiss(MissReason.IO_ERROR, f"{type(error).__name__}: {error}")

    def _settle(self, ticket: ReadTicket, index: int, outcome: BlockRead) -> None:
        with self._state:
            self._outstanding_blocks -= 1
            ticket.open_blocks -= 1
            if not isinstance(outcome, BlockHit):
                ticket.misses[index] = outcome
            done = ticket.open_blocks == 0
        if done:
            misses = tuple(sorted(ticket.misses.items()))
            good = misses[0][0] if misses else len(ticket.request.keys)
            ticket.future.set_result(ReadOutcome(good, misses))
