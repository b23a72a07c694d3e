"""One connection to Redis, one exchange at a time, and what its failures mean.

A pool would let a later write overtake an earlier one. Time limits are asyncio's own, around the whole exchange: those
of the client library wrap its socket calls in ways that can lose a cancellation.
"""

import asyncio
import re
from collections.abc import Sequence

import hiredis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from dualpath.model.errors import Broken, DualPathError, OutcomeUnknown, Refused, Rejected, Stale
from dualpath.scheduler.stores.redis_address import Route

Command = Sequence[bytes | str | int]

# What a server says while it takes no writes; the second word is what an operator can do about it.
BUSY_WORDS = {
    "OOM": "Redis is full: raise maxmemory or shorten the retention",
    "MISCONF": "Redis cannot write its disk: see its log",
    "READONLY": "this Redis is a replica, a failover may be under way",
    "LOADING": "Redis is still loading its data",
    "BUSY": "Redis is running a long script",
    "NOREPLICAS": "Redis has fewer replicas than its min-replicas-to-write",
    "MASTERDOWN": "Redis lost its primary",
    "CLUSTERDOWN": "the Redis cluster does not serve this slot",
    "TRYAGAIN": "the Redis cluster is moving this slot",
}
NO_PRIMARY_WORDS = ("READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS")
_BUSY = re.compile(rf"\b({'|'.join(BUSY_WORDS)})\b")
_CLASS_WORDS: dict[type[RedisError], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    BusyLoadingError: "LOADING",
}


class RedisConnection:
    """Sends commands and reads their replies; reconnects by itself before the next exchange."""

    def __init__(self, url: str, *, connect_timeout_s: float, reply_timeout_s: float, retry_after_s: float) -> None:
        """Does not connect. Raises Rejected if the URL is none."""
        self._route = Route(url, connect_timeout_s=connect_timeout_s)
        self._connection = self._route.connection
        self.name = self._route.name
        self._reply_timeout_s = reply_timeout_s
        self._retry_after_s = retry_after_s
        self._lock = asyncio.Lock()
        self._closed = False

    async def exchange(self, *commands: Command) -> list[object]:
        """Send the commands together and return a reply for each; an error reply is returned, not raised.

        raises  Refused if nothing was sent, OutcomeUnknown if sending began and a reply is missing,
                Rejected if the server does not let us in, Stale after `close`
        """
        async with self._lock:
            await self._connect()
            replies = await self._send_and_read(commands)
            if self._route.may_move and any(_is_no_primary(reply) for reply in replies):
                await self._connection.disconnect(nowait=True)  # the next exchange asks where the primary is
            return replies

    async def look_again(self) -> None:
        """Where Sentinels name the primary, ask them anew before the next exchange."""
        if self._route.may_move:
            async with self._lock:
                await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        self._closed = True
        async with self._lock:
            await self._route.close()

    async def _connect(self) -> None:
        if self._closed:
            raise Stale(f"the connection to {self.name} is closed")
        connection = self._connection
        try:
            # Readable before we asked: the server hung up, or a reply is left over. Either way not to be used again.
            if connection.is_connected and await connection.can_read():
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await self._route.point()
                await connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            if reply := _reply_within(error):
                raise self.translate(reply) from error
            raise self.refused(f"cannot connect: {error}") from error
        except asyncio.CancelledError:
            await connection.disconnect(nowait=True)  # a handshake may be half done
            raise

    async def _send_and_read(self, commands: Sequence[Command]) -> list[object]:
        packed = b"".join(hiredis.pack_command(tuple(command)) for command in commands)  # type: ignore[arg-type]
        complete = False
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                await self._connection.send_packed_command(packed)
                replies = [await self._read_one() for _ in commands]
            complete = True
            return replies
        except BusyLoadingError as error:
            raise self.translate(error) from error
        except TimeoutError as error:
            raise OutcomeUnknown(f"Redis {self.name} did not answer within {self._reply_timeout_s} s") from error
        except (RedisError, OSError) as error:
            raise OutcomeUnknown(f"Redis {self.name} hung up before it answered: {error}") from error
        finally:
            if not complete:
                # Whatever went wrong, be it a cancelled caller: a reply may still come, and belongs to nobody.
                await self._connection.disconnect(nowait=True)

    async def _read_one(self) -> object:
        try:
            reply: object = await self._connection.read_response()
        except ResponseError as error:
            return error
        return reply

    def refused(self, message: str, *, reason: str = "STORE_UNAVAILABLE") -> Refused:
        return Refused(f"Redis {self.name}: {message}", retry_after_s=self._retry_after_s, reason=reason)

    def translate(self, error: RedisError) -> DualPathError:
        """What an error reply means for the caller."""
        text = str(error)
        if text.startswith("STALE "):
            return Stale(text.removeprefix("STALE "))
        if text.startswith("LOST "):
            return Stale(f"Redis {self.name} lost {text.removeprefix('LOST ')}", reason="STORE_LOST_WRITES")
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
            return Rejected(
                f"Redis {self.name} does not let us in: {text}",
                field="redis_url",
                reason="STORE_ACCESS",
                precondition=True,
            )
        # Redis 6.2 wraps errors within scripts into other words, so the whole text is searched.
        found = _BUSY.search(text)
        word = found[1] if found else next((w for kind, w in _CLASS_WORDS.items() if isinstance(error, kind)), None)
        if word:
            return self.refused(f"{BUSY_WORDS[word]} ({text or word})", reason=f"STORE_{word}")
        return Broken(f"Redis {self.name} answered {text!r}", reason="STORE_BROKEN")


def _reply_within(error: BaseException) -> RedisError | None:
    """The answer of the server to a handshake; the client wraps it as if the network had failed."""
    if isinstance(error, AuthenticationError | AuthorizationError | BusyLoadingError | ResponseError):
        return error
    return _reply_within(error.__cause__) if error.__cause__ else None


def _is_no_primary(reply: object) -> bool:
    """An answer of a server that takes no writes, although the Sentinels named it the primary."""
    return (
        isinstance(reply, ResponseError)
        and (found := _BUSY.search(str(reply))) is not None
        and (found[1] in NO_PRIMARY_WORDS)
    )


def is_missing_script(reply: object) -> bool:
    return isinstance(reply, NoScriptError)
