"""Helpers for tests that wait on real processes and sockets: conditions with a deadline instead of sleeps."""

import asyncio
import socket
import time
from collections.abc import Callable

POLL_S = 0.005


async def wait_until(condition: Callable[[], bool], *, timeout_s: float = 5.0, what: str = "") -> None:
    """Return as soon as the condition holds; raises AssertionError, naming it, after timeout_s."""
    ends_at_s = time.monotonic() + timeout_s
    while not condition():
        _check_deadline(condition, ends_at_s=ends_at_s, timeout_s=timeout_s, what=what)
        await asyncio.sleep(POLL_S)


def wait_until_sync(condition: Callable[[], bool], *, timeout_s: float = 5.0, what: str = "") -> None:
    """The same for tests without an event loop."""
    ends_at_s = time.monotonic() + timeout_s
    while not condition():
        _check_deadline(condition, ends_at_s=ends_at_s, timeout_s=timeout_s, what=what)
        time.sleep(POLL_S)


def find_free_port() -> int:
    """Ask the kernel for a port on loopback. Rarely, another process takes it before the caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _check_deadline(condition: Callable[[], bool], *, ends_at_s: float, timeout_s: float, what: str) -> None:
    if time.monotonic() >= ends_at_s:
        name = what or getattr(condition, "__qualname__", repr(condition))
        raise AssertionError(f"not within {timeout_s} s: {name}")
