"""When a turn is offered to the scheduler, and when again after it was refused: overload must not be fed by retries.

Until something is refused, turns go out as they come. From then on, all that waits here goes out in its order and no
faster than turns of this client end, plus RETRY_SHARE, plus a trickle: what the scheduler has room for is about what it
has just finished. Nothing goes out before the time that the last refusal named.
"""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable

from dualpath.client.handle import TurnHandle
from dualpath.model.errors import DualPathError, Refused

RETRY_SHARE = 0.1  # offers beyond the turns that end
TRICKLE_PER_S = 1.0  # offers of a client of which no turn ends
SAVED_MAX = 32.0  # offers that may be saved up
JITTER = 0.25  # of the time that a refusal names, either way: clients that were refused together must not come together


class Offers:
    """The turns of one client that are not with the scheduler yet.

    send        passes a turn to the stream
    fail        ends a turn that was refused for `patience_s`
    """

    def __init__(
        self,
        send: Callable[[TurnHandle], None],
        fail: Callable[[TurnHandle, DualPathError], None],
        *,
        patience_s: float,
        chance: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._fail = fail
        self._patience_s = patience_s
        self._chance = chance
        self._clock = clock
        self._held: OrderedDict[TurnHandle, None] = OrderedDict()
        self._refused_at_s: dict[TurnHandle, float] = {}  # when first
        self._why: DualPathError = Refused("not offered yet", retry_after_s=0.0)
        self._not_before_s = 0.0
        self._saved, self._counted_at_s = 0.0, 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, handle: TurnHandle) -> bool:
        return handle in self._held

    def new(self, handle: TurnHandle) -> None:
        """A turn to be sent, behind those that were refused before."""
        if self._held:
            self._held[handle] = None
        else:
            self._send(handle)

    def refused(self, handle: TurnHandle, error: Refused) -> None:
        """The scheduler has no room for it now."""
        now_s = self._clock()
        self._refused_at_s.setdefault(handle, now_s)
        pause_s = error.retry_after_s * self._chance.uniform(1 - JITTER, 1 + JITTER)
        self._not_before_s, self._why = max(self._not_before_s, now_s + pause_s), error
        self._held[handle] = None
        if self._task is None or self._task.done():
            self._saved, self._counted_at_s = 0.0, now_s
            self._task = asyncio.create_task(self._offer(), name="dualpath offers")

    def ended(self, handle: TurnHandle) -> None:
        """The turn has its outcome, whatever it is."""
        self._refused_at_s.pop(handle, None)
        self._saved = min(SAVED_MAX, self._saved + 1 + RETRY_SHARE)
        self._changed.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _offer(self) -> None:
        while self._held:
            wait_s = self._step()
            if wait_s > 0:
                self._changed.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _step(self) -> float:
        """Offer the first of those held, or say for how long at most it has to wait."""
        now_s, handle = self._clock(), next(iter(self._held))
        self._saved = min(SAVED_MAX, self._saved + TRICKLE_PER_S * (now_s - self._counted_at_s))
        self._counted_at_s = now_s
        left_s = self._refused_at_s.get(handle, now_s) + self._patience_s - now_s
        if handle.is_done or left_s <= 0:
            del self._held[handle]
            if not handle.is_done:
                self._fail(handle, self._why)
            return 0.0
        if now_s < self._not_before_s:
            return min(left_s, self._not_before_s - now_s)
        if self._saved < 1.0:
            return min(left_s, (1.0 - self._saved) / TRICKLE_PER_S)
        self._saved -= 1.0
        del self._held[handle]
        self._send(handle)
        return 0.0
