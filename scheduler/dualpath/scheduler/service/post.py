"""Who leads the cell: this process, with its Cell, or another one at an address (docs/decisions/0009).

What serves clients and agents asks the post for the cell each time, so that nobody is answered by a scheduler whose
lease may be over.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from dualpath.model.errors import Standby
from dualpath.scheduler.ports import Clock
from dualpath.scheduler.service.cell import Cell

Answer = TypeVar("Answer")


class Stream(Protocol):
    """A stream to a client or a group that lives on this scheduler's lead."""

    def beat(self) -> None:
        """Let the other end hear that this scheduler lives."""
        ...

    def close(self) -> None: ...


class Post:
    """Empty while another scheduler is active. `cell` and `within` are the only ways to a cell from outside."""

    def __init__(self, clock: Clock, *, address: str) -> None:
        self._clock = clock
        self._cell: Cell | None = None
        self._left = asyncio.Event()
        self._streams: dict[Stream, None] = {}
        self.address = address  # of this scheduler, as others dial it
        self.active_address = ""  # of the active one; empty where nobody is known to lead

    @property
    def is_active(self) -> bool:
        return self._cell is not None and self._clock.monotonic_s() < self._cell.lease_ends_at_s

    @property
    def cell(self) -> Cell:
        """The cell, while its lease certainly holds; raises Standby."""
        if self._cell is None or not self.is_active:
            raise self.standby()
        return self._cell

    def leads(self, cell: Cell) -> bool:
        return self._cell is cell

    def standby(self) -> Standby:
        where = f"the active one is {self.active_address}" if self.active_address else "nobody is known to be active"
        return Standby(f"scheduler {self.address} stands by, {where}")

    async def within(self, answer: Awaitable[Answer]) -> Answer:
        """Await something of the cell; raises Standby where the post is left before it comes."""
        asked = asyncio.ensure_future(answer)
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise self.standby()
        finally:
            asked.cancel()
            left.cancel()

    def enter(self, stream: Stream) -> None:
        """The stream is told of beats and of the end until it leaves."""
        self._streams[stream] = None

    def leave(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    def beat(self) -> None:
        for stream in list(self._streams):
            stream.beat()

    # for the keeper

    def take(self, cell: Cell) -> None:
        self._cell, self.active_address = cell, self.address
        self._left = asyncio.Event()

    def give_up(self) -> None:
        """From here on nobody is answered; every stream ends. Again, it does nothing."""
        if self._cell is None:
            return
        self._cell, self.active_address = None, ""
        self._left.set()
        streams, self._streams = self._streams, {}
        for stream in streams:
            stream.close()
