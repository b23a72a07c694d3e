"""KV over TCP with blocking sockets in threads: the default transfer backend.

It behaves like a one-sided RDMA NIC: a node registers memory as a region under a number that cannot be guessed; a peer
that was told the number writes into it or reads from it without the owner's code taking part. A region that was
deregistered refuses whatever still arrives, and its memory is free only once no thread touches it.
"""

import contextlib
import queue
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from dualpath.engine_agent.ports import Piece
from dualpath.engine_agent.transfer.wire_tcp import (
    PIECE,
    REPLY,
    REQUEST,
    Op,
    SocketClosed,
    Status,
    drain,
    receive_exactly,
    receive_pieces,
    send_pieces,
)
from dualpath.model.errors import Refused, Rejected, Stale
from dualpath.storage_shim.wrappers.paced import Pacer

CONNECTIONS_MAX = 256  # peers that may be connected at once
PIECES_MAX = 1 << 20  # pieces of one request
OPEN_REQUESTS_MAX = 256  # requests of one link queued and not yet sent
CONNECT_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Region:
    memory: memoryview
    users: int = 0
    dead: bool = False
    quiet: "Future[None]" = field(default_factory=Future)


class _Unpaced:
    def take(self, nbytes: int) -> None:
        return None


class TcpTransfer:
    """Serves this node's regions to peers and opens links to theirs.

    sent, received  pacers of the compute NIC's two directions (emulated NICs); None leaves them to the real one
    """

    kind = "tcp"

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, sent: Pacer | None = None, received: Pacer | None = None
    ) -> None:
        self._sent = sent or _Unpaced()
        self._received = received or _Unpaced()
        self._regions: dict[int, _Region] = {}
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server((host, port), backlog=64)
        bound = self._listener.getsockname()
        self.address = f"{bound[0]}:{bound[1]}"
        threading.Thread(target=self._accept, name="kv-accept", daemon=True).start()

    def register(self, memory: memoryview) -> int:
        """Open `memory` to peers; returns the region's number."""
        region = secrets.randbits(63) | 1
        with self._lock:
            self._regions[region] = _Region(memory)
        return region

    def deregister(self, region: int) -> "Future[None]":
        """Close a region. The future is done when no thread touches its memory any more; closing twice is fine."""
        with self._lock:
            entry = self._regions.pop(region, None)
            if entry is None:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            entry.dead = True
            if entry.users == 0:
                entry.quiet.set_result(None)
            return entry.quiet

    def connect(self, address: str) -> "TcpLink":
        """Dial a peer's transfer address (blocking, bounded by CONNECT_TIMEOUT_S)."""
        host, _, port = address.rpartition(":")
        try:
            sock = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise Refused(f"transfer peer {address}: {error}", retry_after_s=1.0, reason="PEER_UNREACHABLE") from error
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return TcpLink(sock, sent=self._sent, received=self._received)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
        # shutdown wakes a thread that sits in accept(); close alone does not on Linux
        for sock in (self._listener, *sockets):
            _shut(sock)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                refused = self._closed or len(self._sockets) >= CONNECTIONS_MAX
                if not refused:
                    self._sockets.add(sock)
            if refused:
                _shut(sock)
            else:
                threading.Thread(target=self._serve, args=(sock,), name="kv-serve", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            while True:
                self._serve_one(sock)
        except (OSError, ValueError):
            pass  # the peer went away or spoke another language; its own side reports that
        finally:
            with self._lock:
                self._sockets.discard(sock)
            _shut(sock)

    def _serve_one(self, sock: socket.socket) -> None:
        op, region, count, total = REQUEST.unpack(receive_exactly(sock, REQUEST.size))
        if op not in (Op.WRITE, Op.READ) or count > PIECES_MAX:
            raise ValueError(f"request op {op} with {count} pieces")
        table = receive_exactly(sock, count * PIECE.size)
        spans = list(PIECE.iter_unpack(table))
        if sum(length for _, length in spans) != total:
            raise ValueError("piece lengths do not add up to the request's total")
        entry, status = self._enter(region, spans)
        try:
            if entry is None:
                if op == Op.WRITE:
                    drain(sock, total)
                sock.sendall(REPLY.pack(status, 0))
                return
            views = [entry.memory[offset : offset + length] for offset, length in spans]
            if op == Op.WRITE:
                receive_pieces(sock, views)
                self._received.take(total)
                sock.sendall(REPLY.pack(Status.OK, 0))
            else:
                self._sent.take(total)
                send_pieces(sock, [memoryview(REPLY.pack(Status.OK, total)), *views])
        finally:
            if entry is not None:
                self._leave(entry)

    def _enter(self, region: int, spans: list[tuple[int, int]]) -> tuple[_Region | None, Status]:
        with self._lock:
            entry = self._regions.get(region)
            if entry is None:
                return None, Status.DEAD_REGION
            size = len(entry.memory)
            if any(offset + length > size for offset, length in spans):
                return None, Status.OUT_OF_BOUNDS
            entry.users += 1
            return entry, Status.OK

    def _leave(self, entry: _Region) -> None:
        with self._lock:
            entry.users -= 1
            if entry.dead and entry.users == 0:
                entry.quiet.set_result(None)


@dataclass(slots=True)
class _Request:
    op: Op
    region: int
    pieces: Sequence[Piece]
    done: "Future[None]"

    @property
    def total(self) -> int:
        return sum(len(view) for _, view in self.pieces)


class TcpLink:
    """One connection to a peer's regions. Requests are served in order; many may be under way."""

    def __init__(self, sock: socket.socket, *, sent: Pacer, received: Pacer) -> None:
        self._sock = sock
        self._sent = sent
        self._received = received
        self._outgoing: queue.Queue[_Request | None] = queue.Queue(OPEN_REQUESTS_MAX)
        self._awaiting: deque[_Request] = deque()
        self._lock = threading.Lock()
        self._broken: Exception | None = None
        self._loops = 2  # send and receive
        threading.Thread(target=self._send_loop, name="kv-send", daemon=True).start()
        threading.Thread(target=self._receive_loop, name="kv-receive", daemon=True).start()

    def write(self, region: int, pieces: Sequence[Piece]) -> "Future[None]":
        """Put each piece's view at its offset of the peer's region.

        The views must not change until the future is done; it is done when the peer holds the bytes.
        raises  Refused if OPEN_REQUESTS_MAX requests already wait
        errors  (in the future) Stale: the region is gone; Rejected: out of its bounds; Refused: connection lost
        """
        return self._post(Op.WRITE, region, pieces)

    def read(self, region: int, pieces: Sequence[Piece]) -> "Future[None]":
        """Fill each piece's view from its offset of the peer's region; errors as in `write`."""
        return self._post(Op.READ, region, pieces)

    def close(self) -> None:
        """Break the connection; requests under way fail with Refused."""
        self._break(SocketClosed("link closed"))

    def _post(self, op: Op, region: int, pieces: Sequence[Piece]) -> "Future[None]":
        request = _Request(op, region, pieces, Future())
        request.done.set_running_or_notify_cancel()  # cannot be cancelled: its memory is in use until it is done
        with self._lock:
            if self._broken is not None:
                raise _lost(self._broken)
            try:
                self._outgoing.put_nowait(request)
            except queue.Full:
                message = f"{OPEN_REQUESTS_MAX} transfers wait on this link already"
                raise Refused(message, retry_after_s=0.05, reason="LINK_FULL") from None
        return request.done

    def _send_loop(self) -> None:
        try:
            while (request := self._outgoing.get()) is not None:
                with self._lock:
                    self._awaiting.append(request)
                if self._broken is not None:
                    break
                self._send(request)
        except (OSError, ValueError) as error:
            self._break(error)
        finally:
            self._end_loop()

    def _send(self, request: _Request) -> None:
        table = b"".join(PIECE.pack(offset, len(view)) for offset, view in request.pieces)
        header = REQUEST.pack(request.op, request.region, len(request.pieces), request.total)
        payload: list[memoryview] = []
        if request.op is Op.WRITE:
            self._sent.take(request.total)
            payload = [view for _, view in request.pieces]
        send_pieces(self._sock, [memoryview(header), memoryview(table), *payload])

    def _receive_loop(self) -> None:
        try:
            while True:
                status, total = REPLY.unpack(receive_exactly(self._sock, REPLY.size))
                request = self._awaiting[0]
                if status == Status.OK and request.op is Op.READ:
                    if total != request.total:
                        raise ValueError(f"peer sent {total} bytes, {request.total} were asked for")
                    receive_pieces(self._sock, [view for _, view in request.pieces])
                    self._received.take(total)
                with self._lock:
                    self._awaiting.popleft()
                _finish(request, Status(status))
        except (OSError, ValueError, IndexError) as error:
            self._break(error)
        finally:
            self._end_loop()

    def _break(self, error: Exception) -> None:
        """Stop both loops; the first error is the one reported."""
        with self._lock:
            if self._broken is not None:
                return
            self._broken = error
            if not self._outgoing.full():  # a full queue wakes the send loop by itself
                self._outgoing.put_nowait(None)
        _shut(self._sock)

    def _end_loop(self) -> None:
        """The last loop to end fails what is left: only now does no thread touch the requests' memory."""
        with self._lock:
            self._loops -= 1
            if self._loops:
                return
            error = self._broken or SocketClosed("link closed")
            abandoned = list(self._awaiting)
            self._awaiting.clear()
            while not self._outgoing.empty():
                if (queued := self._outgoing.get_nowait()) is not None:
                    abandoned.append(queued)
        for request in abandoned:
            request.done.set_exception(_lost(error))


def _finish(request: _Request, status: Status) -> None:
    match status:
        case Status.OK:
            request.done.set_result(None)
        case Status.DEAD_REGION:
            request.done.set_exception(Stale("the peer has released the region", reason="DEAD_REGION"))
        case Status.OUT_OF_BOUNDS:
            message = f"{len(request.pieces)} pieces reach beyond the peer's region"
            request.done.set_exception(Rejected(message, reason="REGION_BOUNDS"))


def _lost(error: Exception) -> Refused:
    return Refused(f"transfer connection lost: {error}", retry_after_s=0.5, reason="PEER_LOST")


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
