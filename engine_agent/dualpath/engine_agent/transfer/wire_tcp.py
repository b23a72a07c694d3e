"""Byte layout of the TCP transfer backend, and gather/scatter over a socket.

    request   op u8 | 7 pad | region u64 | pieces u32 | 4 pad | total u64      32 bytes, little endian
              then per piece: offset u64 | length u64
              then, for a write, the payload of all pieces end to end
    reply     status u8 | 7 pad | total u64                                    16 bytes
              then, for a read that is OK, the payload of all pieces end to end

Replies come in the order of the requests, so they carry no number.
"""

import socket
import struct
from collections.abc import Sequence
from enum import IntEnum

REQUEST = struct.Struct("<B7xQI4xQ")
PIECE = struct.Struct("<QQ")
REPLY = struct.Struct("<B7xQ")
IOV_MAX = 512  # buffers per sendmsg/recvmsg_into call; Linux takes at most 1024


class Op(IntEnum):
    WRITE = 1
    READ = 2


class Status(IntEnum):
    OK = 0
    DEAD_REGION = 1  # unknown or deregistered
    OUT_OF_BOUNDS = 2


class SocketClosed(ConnectionError):
    """The other side closed the connection, perhaps in the middle of a message."""


def send_pieces(sock: socket.socket, views: Sequence[memoryview]) -> None:
    """Send all views end to end without joining them."""
    pending = [view for view in views if len(view)]
    at = 0
    while at < len(pending):
        sent = sock.sendmsg(pending[at : at + IOV_MAX])
        while at < len(pending) and sent >= len(pending[at]):
            sent -= len(pending[at])
            at += 1
        if sent:
            pending[at] = pending[at][sent:]


def receive_pieces(sock: socket.socket, views: Sequence[memoryview]) -> None:
    """Fill all views in order straight from the socket; raises SocketClosed at an early end."""
    pending = [view for view in views if len(view)]
    at = 0
    while at < len(pending):
        got = sock.recvmsg_into(pending[at : at + IOV_MAX])[0]
        if got == 0:
            raise SocketClosed("connection closed in the middle of a transfer")
        while at < len(pending) and got >= len(pending[at]):
            got -= len(pending[at])
            at += 1
        if got:
            pending[at] = pending[at][got:]


def receive_exactly(sock: socket.socket, count: int) -> memoryview:
    """The next `count` bytes in memory of their own."""
    buffer = memoryview(bytearray(count))
    receive_pieces(sock, [buffer])
    return buffer


def drain(sock: socket.socket, count: int) -> None:
    """Read `count` bytes and forget them, so that the next request starts where it should."""
    scratch = memoryview(bytearray(min(count, 1 << 16)))
    while count:
        part = scratch[: min(count, len(scratch))]
        receive_pieces(sock, [part])
        count -= len(part)
