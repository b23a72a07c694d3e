"""A gRPC client for streams, by hand on HTTP/2 (RFC 9113): what a load generator needs and nothing else.

A message costs grpc.aio 50 to 90 us on this side alone, more than the scheduler spends on it; here it is about 5 us. So
one core can be 144 leaders and their clients while the scheduler is the one that is busy. No TLS, no compression, and
response headers are not read: a stream that ends says so, why it ended is in the scheduler's log.

    message = 0x00, length (4 bytes), protobuf             frame = length (3), type, flags, stream id (4), payload
"""

import socket
import struct
from collections.abc import Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 4, 5
WINDOW_MAX = (1 << 31) - 1
WINDOW_FIRST = 65_535  # of a connection or stream before anyone says otherwise
TOP_UP_BYTES = 1 << 30  # taken in before the window is opened again
READ_BYTES = 1 << 18
FRAME = struct.Struct(">HBBBI")  # 3 bytes of length as 2 + 1


class StreamEnded(Exception):
    """The other end closed a stream or the connection."""


class Stream:
    """One bidirectional call on a connection. `take` gets each message's bytes."""

    def __init__(self, connection: "Connection", number: int, window: int, take: Callable[[bytes], None]) -> None:
        self._connection = connection
        self.number = number
        self.take = take
        self.window = window
        self.taken = 0
        self.waiting = bytearray()  # framed messages that wait for the window
        self.partial = bytearray()

    def send(self, message: bytes) -> None:
        """Queue one message; it leaves with the connection's next `flush`."""
        self.waiting += b"\x00" + len(message).to_bytes(4, "big")
        self.waiting += message
        self._connection.dirty.append(self)


class Connection:
    """One TCP connection with its streams. Call `readable` when there is something to read, `flush` after sends."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.dirty: list[Stream] = []
        self._authority = f"{host}:{port}".encode()
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._input = bytearray()
        self._output = bytearray(PREFACE)
        self._window = WINDOW_FIRST
        self._stream_window = WINDOW_FIRST
        self._frame_max = 16_384
        self._taken = 0
        settings = struct.pack(">HIHI", HEADER_TABLE_SIZE, 0, INITIAL_WINDOW_SIZE, WINDOW_MAX)
        self._frame(SETTINGS, 0, 0, settings)
        self._frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MAX - WINDOW_FIRST))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._output)

    def open(self, path: str, take: Callable[[bytes], None]) -> Stream:
        """Begin a call, such as "/dualpath.v1.Agents/Work"."""
        fields = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", self._authority),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"dualpath-bench"),
        )
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)  # never indexed, never packed
        stream = Stream(self, self._next, self._stream_window, take)
        self._streams[self._next] = stream
        self._frame(HEADERS, END_HEADERS, self._next, block)
        self._next += 2
        return stream

    def close(self) -> None:
        self.socket.close()

    # out

    def flush(self) -> None:
        """Write what is queued as far as windows and socket allow."""
        if self.dirty:
            streams, self.dirty = self.dirty, []
            for stream in streams:
                self._move(stream)
        if self._output:
            try:
                sent = self.socket.send(self._output)
            except BlockingIOError:
                return
            del self._output[:sent]

    def _move(self, stream: Stream) -> None:
        waiting = stream.waiting
        while waiting and self._window > 0 and stream.window > 0:
            size = min(len(waiting), self._frame_max, self._window, stream.window)
            self._frame(DATA, 0, stream.number, waiting[:size])
            del waiting[:size]
            self._window -= size
            stream.window -= size

    def _frame(self, kind: int, flags: int, number: int, payload: bytes | bytearray) -> None:
        size = len(payload)
        self._output += FRAME.pack(size >> 8, size & 0xFF, kind, flags, number)
        self._output += payload

    # in

    def readable(self) -> None:
        """Take everything that has come; raises StreamEnded if the other end is through with us."""
        while True:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                raise StreamEnded("the connection was closed")
            self._parse(data)
            if len(data) < READ_BYTES:
                return

    def _parse(self, data: bytes) -> None:
        if self._input:
            self._input += data
            data = bytes(self._input)
            self._input.clear()
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, number = FRAME.unpack_from(data, at)
            size = high << 8 | low
            if end - at - 9 < size:
                break
            self._take_frame(kind, flags, number & WINDOW_MAX, data[at + 9 : at + 9 + size])
            at += 9 + size
        if at < end:
            self._input += data[at:]

    def _take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == DATA:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            self._take_data(self._streams[number], payload)
        elif kind == HEADERS:
            if flags & END_STREAM:
                raise StreamEnded(f"stream {number} was ended by the scheduler")
        elif kind == WINDOW_UPDATE:
            self._take_window(number, int.from_bytes(payload, "big") & WINDOW_MAX)
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == PING and not flags & ACK:
            self._frame(PING, ACK, 0, payload)
        elif kind in (RST_STREAM, GOAWAY):
            raise StreamEnded(f"stream {number} was reset: {payload!r}")

    def _take_data(self, stream: Stream, payload: bytes) -> None:
        size = len(payload)
        self._taken += size
        stream.taken += size
        if self._taken > TOP_UP_BYTES:
            self._frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
            self._taken = 0
        if stream.taken > TOP_UP_BYTES:
            self._frame(WINDOW_UPDATE, 0, stream.number, struct.pack(">I", stream.taken))
            stream.taken = 0
        if stream.partial:
            stream.partial += payload
            payload = bytes(stream.partial)
            stream.partial.clear()
        at, end = 0, len(payload)
        while end - at >= 5:
            length = int.from_bytes(payload[at + 1 : at + 5], "big")
            if end - at - 5 < length:
                break
            stream.take(payload[at + 5 : at + 5 + length])
            at += 5 + length
        if at < end:
            stream.partial += payload[at:]

    def _take_window(self, number: int, more: int) -> None:
        if number == 0:
            self._window += more
            self.dirty += [stream for stream in self._streams.values() if stream.waiting]
        elif number in self._streams:
            self._streams[number].window += more
            self.dirty.append(self._streams[number])

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                    self.dirty.append(stream)
                self._stream_window = value
            elif name == MAX_FRAME_SIZE:
                self._frame_max = value
        self._frame(SETTINGS, ACK, 0, b"")


def _text(value: bytes) -> bytes:
    """A string of HPACK, at most 126 bytes, not Huffman coded."""
    return bytes((len(value),)) + value
