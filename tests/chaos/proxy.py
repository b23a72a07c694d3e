"""A TCP proxy that a fault can make slow, stop in one direction, or cut in mid message. Runs in this process."""

import asyncio
from contextlib import suppress

CHUNK_BYTES = 16_384
STALL_LOOK_S = 0.05
CUT_AFTER_BYTES = 40  # of the next piece: inside a frame, seldom at its end


class Proxy:
    """One way in, one way out. Without a fault it only passes bytes on."""

    def __init__(self, listen_host: str, listen_port: int, target_host: str, target_port: int) -> None:
        self.address = f"{listen_host}:{listen_port}"
        self.delay_s = 0.0  # of each piece, both ways
        self.stalled: frozenset[str] = frozenset()  # "up" to the target, "down" to the caller: bytes wait here
        self._cut = False
        self._listen = (listen_host, listen_port)
        self._target = (target_host, target_port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self._listen)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut_in_mid_message(self) -> None:
        """The next piece on each connection is cut short, and the connection with it."""
        self._cut = True

    def heal(self) -> None:
        self.delay_s, self._cut = 0.0, False
        self.stalled = frozenset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError):
                await self._join(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(*self._target)
        ways = [
            asyncio.create_task(self._pass(reader, target_writer, "up")),
            asyncio.create_task(self._pass(target_reader, writer, "down")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for way in ways:
                if not way.cancelled():
                    way.exception()  # a connection that broke: that is what this is for
            target_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while way in self.stalled:  # noqa: ASYNC110 (a fault is over when somebody says so, at any time)
                await asyncio.sleep(STALL_LOOK_S)
            if self._cut and len(data) > CUT_AFTER_BYTES:
                self.cuts += 1
                writer.write(data[:CUT_AFTER_BYTES])
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()
