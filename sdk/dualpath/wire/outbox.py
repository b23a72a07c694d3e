"""What waits to be written to a stream: it leaves in batches, since a message costs as much as ten frames in it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

MESSAGE_BYTES_MAX = 16 << 20  # of one message on any stream; every channel and server is set to it
BATCH_ITEMS_MAX = 256
BATCH_BYTES_MAX = 1 << 20  # a batch of more than one item keeps to this

Item = TypeVar("Item")

MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)


class Outbox(Generic[Item]):
    """A bounded line of items for one writer.

    items_max   `put` refuses beyond that
    size_bytes  of an item, roughly; an item of more than BATCH_BYTES_MAX travels alone
    """

    def __init__(self, items_max: int, size_bytes: Callable[[Item], int]) -> None:
        self._items: deque[Item] = deque()
        self._items_max = items_max
        self._size_bytes = size_bytes
        self._arrived = asyncio.Event()
        self._nudged = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> bool:
        """Queue an item; False where items_max wait already."""
        if len(self._items) >= self._items_max:
            return False
        self._items.append(item)
        self._arrived.set()
        return True

    def nudge(self) -> None:
        """Let `take` return at once, with an empty batch where nothing waits: a message that says only "I live"."""
        self._nudged = True
        self._arrived.set()

    def clear(self) -> None:
        self._items.clear()

    async def take(self) -> list[Item]:
        """The next batch, as soon as there is an item at all or a nudge."""
        while not self._items and not self._nudged:
            self._arrived.clear()
            await self._arrived.wait()
        self._nudged = False
        if not self._items:
            return []
        batch = [self._items.popleft()]
        if not self._items:
            return batch
        left = BATCH_BYTES_MAX - self._size_bytes(batch[0])
        while self._items and len(batch) < BATCH_ITEMS_MAX:
            left -= self._size_bytes(self._items[0])
            if left < 0:
                break
            batch.append(self._items.popleft())
        return batch
