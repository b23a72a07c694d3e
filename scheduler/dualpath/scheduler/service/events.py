"""Who follows which turn. A slow client loses middle events, never the last one, and never slows anybody else (R12)."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator

from dualpath.model.errors import Refused
from dualpath.model.ids import TurnId
from dualpath.scheduler.service.messages import Refusal, TurnNews

BATCH_NEWS, BATCH_TOKENS = 256, 1 << 18  # of one message to a client


class Watcher:
    """One client's view of some turns: a bounded buffer of news."""

    def __init__(self, news_max: int) -> None:
        self._news: deque[TurnNews | Refusal] = deque()
        self._news_max = news_max
        self._arrived = asyncio.Event()
        self._closed = False
        self._beaten = False
        self.lost = 0

    def push(self, news: TurnNews | Refusal) -> None:
        self._news.append(news)
        if len(self._news) > self._news_max:
            self._drop_one()
        self._arrived.set()

    def beat(self) -> None:
        """Let `follow` yield at once, an empty batch where there is no news."""
        self._beaten = True
        self._arrived.set()

    def close(self) -> None:
        self._closed = True
        self._arrived.set()

    async def follow(self) -> AsyncIterator[list[TurnNews | Refusal]]:
        """News as they come, in batches of what is there, until closed; an empty batch is a beat."""
        while True:
            while self._news:
                yield self._next_batch()
            if self._closed:
                return
            if self._beaten:
                self._beaten = False
                yield []
                continue
            self._arrived.clear()
            await self._arrived.wait()

    def _next_batch(self) -> list[TurnNews | Refusal]:
        """At most BATCH_NEWS of them, and at most one whose result is long."""
        batch = [self._news.popleft()]
        left = BATCH_TOKENS - _tokens_of(batch[0])
        while self._news and len(batch) < BATCH_NEWS:
            left -= _tokens_of(self._news[0])
            if left < 0:
                break
            batch.append(self._news.popleft())
        return batch

    def _drop_one(self) -> None:
        """Drop the oldest event that is not a turn's last; results stay, and are bounded by the turns followed."""
        for index, news in enumerate(self._news):
            if isinstance(news, TurnNews) and not news.state.is_terminal:
                del self._news[index]
                self.lost += 1
                return


class EventHub:
    """Turn -> watchers."""

    def __init__(self, *, watchers_max: int, news_max: int) -> None:
        self._watchers: defaultdict[TurnId, list[Watcher]] = defaultdict(list)
        self._watchers_max = watchers_max
        self._news_max = news_max

    def watcher(self) -> Watcher:
        return Watcher(self._news_max)

    def follow(self, turn_id: TurnId, watcher: Watcher) -> None:
        """raises Refused if watchers_max clients follow this turn already"""
        watchers = self._watchers[turn_id]
        if watcher in watchers:
            return
        if len(watchers) >= self._watchers_max:
            message = f"{len(watchers)} clients follow this turn, the bound is {self._watchers_max}"
            raise Refused(message, retry_after_s=1.0, reason="WATCHERS")
        watchers.append(watcher)

    def unfollow(self, turn_id: TurnId, watcher: Watcher) -> None:
        watchers = self._watchers.get(turn_id, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self._watchers.pop(turn_id, None)

    def publish(self, news: TurnNews) -> None:
        for watcher in self._watchers.get(news.turn_id, ()):
            watcher.push(news)
        if news.state.is_terminal:
            self._watchers.pop(news.turn_id, None)

    @property
    def followed(self) -> int:
        return len(self._watchers)


def _tokens_of(news: TurnNews | Refusal) -> int:
    return len(news.result.tokens) if isinstance(news, TurnNews) and news.result is not None else 0
