"""The Turns service: what clients call (turns.proto)."""

import asyncio
from collections.abc import AsyncIterator

import grpc

from dualpath.model.errors import DualPathError
from dualpath.model.ids import TurnId
from dualpath.model.turn import TurnState
from dualpath.scheduler.api.convert import decisions_of, event_of, record_of, refusal_of, submission_of
from dualpath.scheduler.api.status import abort
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.events import Watcher
from dualpath.scheduler.service.messages import Refusal, TurnNews
from dualpath.scheduler.service.post import Post
from dualpath.v1 import turns_pb2, turns_pb2_grpc


class TurnsService(turns_pb2_grpc.TurnsServicer):
    """Thin: translate, call the cell, translate back."""

    def __init__(self, post: Post) -> None:
        self._post = post

    async def Submit(
        self, request: turns_pb2.SubmitTurn, context: "grpc.aio.ServicerContext"
    ) -> AsyncIterator[turns_pb2.TurnEvent]:
        try:
            entry = await self._post.within(self._post.cell.intake.submit(submission_of(request)))
        except DualPathError as error:
            await abort(context, error)
            return
        async for event in self._follow(entry, context):
            yield event

    async def SubmitMany(
        self, request_iterator: AsyncIterator[turns_pb2.SubmitBatch], context: "grpc.aio.ServicerContext"
    ) -> AsyncIterator[turns_pb2.EventBatch]:
        stream = await self._open(context)
        taking = asyncio.create_task(stream.take(request_iterator))
        try:
            async for events in stream.events():
                yield turns_pb2.EventBatch(events=events)
        finally:
            taking.cancel()
            stream.close()
        await self._check(stream, context)

    async def Watch(
        self, request: turns_pb2.TurnRef, context: "grpc.aio.ServicerContext"
    ) -> AsyncIterator[turns_pb2.TurnEvent]:
        entry = await self._find(request, context)
        async for event in self._follow(entry, context):
            yield event

    async def Get(self, request: turns_pb2.TurnRef, context: "grpc.aio.ServicerContext") -> turns_pb2.TurnRecord:
        return record_of(await self._find(request, context))

    async def Cancel(self, request: turns_pb2.TurnRef, context: "grpc.aio.ServicerContext") -> turns_pb2.TurnRecord:
        entry = await self._find(request, context)
        try:
            self._post.cell.settle.cancel(entry.turn.turn_id)
            await self._post.within(self._post.cell.core.journal.stored(entry.turn.turn_id))
        except DualPathError as error:
            await abort(context, error)
        return record_of(entry)

    async def Explain(self, request: turns_pb2.TurnRef, context: "grpc.aio.ServicerContext") -> turns_pb2.Explanation:
        entry = await self._find(request, context)
        standing = self._post.cell.standing(entry)
        return turns_pb2.Explanation(
            turn=record_of(entry),
            place_in_line=standing.place,
            waits_for=standing.waits_for,
            decisions=decisions_of(entry),
        )

    async def _follow(
        self, entry: TurnEntry, context: "grpc.aio.ServicerContext"
    ) -> AsyncIterator[turns_pb2.TurnEvent]:
        """The turn as it is now, then its news to the end."""
        stream = await self._open(context)
        stream.follow(entry)
        stream.all_taken = True
        try:
            async for events in stream.events():
                for event in events:
                    yield event
        finally:
            stream.close()
        await self._check(stream, context)

    async def _open(self, context: "grpc.aio.ServicerContext") -> "_ManyStream":
        try:
            return _ManyStream(self._post)
        except DualPathError as error:
            await abort(context, error)
            raise

    async def _check(self, stream: "_ManyStream", context: "grpc.aio.ServicerContext") -> None:
        """A stream that ended because the post was left ends with the error that says so."""
        if not self._post.leads(stream.cell):
            await abort(context, self._post.standby())

    async def _find(self, request: turns_pb2.TurnRef, context: "grpc.aio.ServicerContext") -> TurnEntry:
        """The turn, once what is known of it is in the store too: nobody may hear of an end that could be forgotten."""
        try:
            cell = self._post.cell
            entry = cell.find(turn_id=request.turn_id, idempotency_key=request.idempotency_key)
            await self._post.within(cell.core.journal.stored(entry.turn.turn_id))
            return entry
        except DualPathError as error:
            await abort(context, error)
            raise


class _ManyStream:
    """The turns one stream follows, and the one buffer their news come through."""

    def __init__(self, post: Post) -> None:
        """raises Standby"""
        self.cell = post.cell
        self._post = post
        self._watcher: Watcher = self.cell.core.hub.watcher()
        self._followed: dict[TurnId, None] = {}
        self._accepting = 0
        self._closed = False
        self.all_taken = False
        post.enter(self._watcher)
        self._watcher.beat()  # the client hears at once that it came to the active scheduler

    async def take(self, batches: AsyncIterator[turns_pb2.SubmitBatch]) -> None:
        """Accept submissions as they come, in their order; those of a batch share the store's commits."""
        async for batch in batches:
            for request in batch.turns:
                self._accept(request)
            await self.cell.core.journal.room()
        self.all_taken = True
        self._close_if_done()

    def follow(self, entry: TurnEntry) -> None:
        """raises Refused if too many clients follow this turn"""
        turn_id = entry.turn.turn_id
        if not entry.state.is_terminal:
            self.cell.core.hub.follow(turn_id, self._watcher)
        self._followed[turn_id] = None
        decoding = entry.state is TurnState.DECODING
        self._watcher.push(self.cell.core.news(entry, first_token=decoding))

    async def events(self) -> AsyncIterator[list[turns_pb2.TurnEvent]]:
        """News to the end of the last turn."""
        async for news in self._watcher.follow():
            events = []
            for item in news:
                match item:
                    case TurnNews():
                        events.append(event_of(item))
                        if item.state.is_terminal:
                            self._followed.pop(item.turn_id, None)
                    case Refusal(key, error):
                        events.append(refusal_of(key, error))
            yield events
            self._close_if_done()

    def close(self) -> None:
        self._closed = True
        self._post.leave(self._watcher)
        for turn_id in self._followed:
            self.cell.core.hub.unfollow(turn_id, self._watcher)
        self._watcher.close()

    def _close_if_done(self) -> None:
        if self.all_taken and not self._accepting and not self._followed:
            self._watcher.close()

    def _accept(self, request: turns_pb2.SubmitTurn) -> None:
        try:
            self.cell.intake.accept(submission_of(request), self._accepted)
            self._accepting += 1
        except DualPathError as error:
            self._watcher.push(Refusal(request.idempotency_key, error))

    def _accepted(self, entry: TurnEntry) -> None:
        self._accepting -= 1
        if self._closed:
            return
        try:
            self.follow(entry)
        except DualPathError as error:
            self._watcher.push(Refusal(entry.turn.idempotency_key, error))
        self._close_if_done()
