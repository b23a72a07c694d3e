"""HTTP/1.1 by hand for the peers: a client that keeps connections busy, and workers that answer at once.

Both run in processes of their own; what they are told comes as JSON on stdin.

    python -m benchmarks.control.http1 workers    listens on the ports given, answers every request, until killed
    python -m benchmarks.control.http1 turns      turns over keep-alive connections, closed loop; prints figures
"""

import json
import select
import socket
import sys
import time
from dataclasses import dataclass, field

from benchmarks.control.processes import cpu_s

READ_BYTES = 1 << 18
HEAD_END = b"\r\n\r\n"
ANSWER = json.dumps({"text": "ok", "meta_info": {"id": "0", "finish_reason": {"type": "length"}}}).encode()
INFO = json.dumps({"model_path": "bench", "served_model_name": "bench", "is_generation": True, "tp_size": 1}).encode()
TURN = "{turn}"
WAIT_S = 5.0


@dataclass(slots=True)
class Request:
    """One call of a turn; every {turn} in path and body stands for the turn's number."""

    method: str
    path: str
    body: str = ""

    def bytes_of(self, turn: int) -> bytes:
        number = f"{turn:010}"
        body = self.body.replace(TURN, number).encode()
        head = f"{self.method} {self.path.replace(TURN, number)} HTTP/1.1\r\nhost: bench\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class Caller:
    """One connection: the calls of a turn one after the other, then the next turn."""

    socket: socket.socket
    turn: int = 0
    step: int = 0
    began_s: float = 0.0
    input: bytearray = field(default_factory=bytearray)


def message_end(data: bytes | bytearray) -> int:
    """Where the first whole message ends, 0 while it is not there yet."""
    head = data.find(HEAD_END)
    if head < 0:
        return 0
    fields = bytes(data[:head]).lower()
    body = head + len(HEAD_END)
    if (at := fields.find(b"content-length:")) >= 0:
        end = body + int(fields[at + 15 :].split(b"\r\n", 1)[0])
        return end if len(data) >= end else 0
    if b"transfer-encoding: chunked" in fields:
        last = data.find(b"0\r\n\r\n", body)
        return last + 5 if last >= 0 else 0
    return body


def workers(ports: list[int]) -> None:
    """Answer on every port, for ever."""
    poll = select.epoll()
    listening: dict[int, socket.socket] = {}
    inputs: dict[int, tuple[socket.socket, bytearray]] = {}
    for port in ports:
        server = socket.create_server(("127.0.0.1", port), backlog=1024)
        listening[server.fileno()] = server
        poll.register(server.fileno(), select.EPOLLIN)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd in listening:
                connection, _ = listening[fd].accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                inputs[connection.fileno()] = (connection, bytearray())
                poll.register(connection.fileno(), select.EPOLLIN)
                continue
            connection, data = inputs[fd]
            try:
                more = connection.recv(READ_BYTES)
            except ConnectionError:
                more = b""
            if not more:
                poll.unregister(fd)
                connection.close()
                del inputs[fd]
                continue
            data += more
            while end := message_end(data):
                body = ANSWER if data.startswith(b"POST") else INFO
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                del data[:end]


def turns(
    port: int, pid: int, requests: list[list[Request]], *, connections: int, warm_up_s: float, seconds: float
) -> dict[str, object]:
    """Run turns; `requests` are the variants of a turn's calls, taken in turn. CPU is that of process `pid`."""
    poll = select.epoll()
    callers: dict[int, Caller] = {}
    next_turn = done = errors = 0
    spans_s: list[float] = []
    error = ""

    def send(caller: Caller) -> None:
        request = requests[caller.turn % len(requests)][caller.step]
        caller.socket.sendall(request.bytes_of(caller.turn))

    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callers[connection.fileno()] = Caller(connection)
        poll.register(connection.fileno(), select.EPOLLIN)
    for caller in callers.values():
        next_turn += 1
        caller.turn, caller.began_s = next_turn, time.monotonic()
        send(caller)
    measures_at_s = time.monotonic() + warm_up_s
    ends_at_s = measures_at_s + seconds
    began: tuple[float, float] | None = None
    while (now_s := time.monotonic()) < ends_at_s:
        if began is None and now_s >= measures_at_s:
            began = (now_s, cpu_s(pid))
            done, spans_s = 0, []
        for fd, _ in poll.poll(WAIT_S):
            caller = callers[fd]
            more = caller.socket.recv(READ_BYTES)
            if not more:
                raise ConnectionError("the peer closed a connection")
            caller.input += more
            end = message_end(caller.input)
            if not end:
                continue
            if caller.input[9:10] != b"2":
                errors += 1
                error = bytes(caller.input[:300]).decode(errors="replace")
            del caller.input[:end]
            caller.step += 1
            if caller.step == len(requests[caller.turn % len(requests)]):
                done += 1
                spans_s.append(time.monotonic() - caller.began_s)
                next_turn += 1
                caller.turn, caller.step, caller.began_s = next_turn, 0, time.monotonic()
            send(caller)
    assert began is not None, "seconds is more than 0"
    span_s, used_s = time.monotonic() - began[0], cpu_s(pid) - began[1]
    spans_s.sort()
    return {
        "turns": done,
        "turns_per_s": round(done / span_s, 1),
        "cores": round(used_s / span_s, 3),
        "cpu_us_per_turn": round(1e6 * used_s / max(1, done), 1),
        "turns_per_core_s": round(done / used_s, 1) if used_s else None,
        "p50_ms": round(1000 * spans_s[len(spans_s) // 2], 3) if spans_s else None,
        "p99_ms": round(1000 * spans_s[int(0.99 * len(spans_s))], 3) if spans_s else None,
        "errors": errors,
        "error": error,
    }


def main() -> None:
    told = json.load(sys.stdin)
    if sys.argv[1] == "workers":
        workers(told["ports"])
    else:
        requests = [[Request(**request) for request in turn] for turn in told.pop("requests")]
        json.dump(turns(requests=requests, **told), sys.stdout)


if __name__ == "__main__":
    main()
