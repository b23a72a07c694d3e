"""A thin face without asyncio: the same client on an event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from dualpath.client.client import Client
from dualpath.client.session import Session
from dualpath.model.turn import TurnResult
from dualpath.v1 import admin_pb2, turns_pb2

Result = TypeVar("Result")


class SyncClient:
    """Use as `with SyncClient("127.0.0.1:7700") as client`."""

    def __init__(self, addresses: str | Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dualpath client", daemon=True)
        self._thread.start()
        self._client = self.run(self._build(addresses))

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def session(self, *, session_id: str | None = None) -> "SyncSession":
        return SyncSession(self, Session(self._client, session_id=session_id))

    def status(self) -> admin_pb2.CellStatus:
        return self.run(self._client.status())

    def explain(self, turn_id: str) -> turns_pb2.Explanation:
        return self.run(self._client.explain(turn_id))

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the client's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @staticmethod
    async def _build(addresses: str | Sequence[str]) -> Client:
        return Client(addresses)


class SyncSession:
    """A session whose turns block."""

    def __init__(self, client: SyncClient, session: Session) -> None:
        self._client = client
        self._session = session

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._session.tokens)

    def turn(self, append: Sequence[int], *, max_new_tokens: int, forced_tokens: bool = False) -> TurnResult:
        work = self._session.turn(append, max_new_tokens=max_new_tokens, forced_tokens=forced_tokens)
        return self._client.run(work)
