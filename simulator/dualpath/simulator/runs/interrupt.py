"""Ctrl-C at a safe point: not in the middle of a write to a database or of a process that is being started."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """`check` raises KeyboardInterrupt once Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.is_wanted = False

    def check(self) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt


@contextmanager
def at_safe_points() -> Iterator[Interrupt]:
    """The first Ctrl-C waits for `check`, the second one is an ordinary KeyboardInterrupt."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt  # signals are the main thread's
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.check()
        interrupt.is_wanted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
