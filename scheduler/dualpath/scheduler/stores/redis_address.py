"""Where a Redis is: at one address, or at the one that Sentinels name (redis+sentinel://host:port,host:port/name/db)."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel

from dualpath.model.errors import Rejected

SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379
SENTINELS_MAX = 16
OPTIONS = ("password", "username", "sentinel_password", "sentinel_username")
WANTED = "redis+sentinel://host:port,host:port/service or .../service/db"


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """A primary by name, and who knows where it is."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    credentials: dict[str, Any]
    sentinel_credentials: dict[str, Any]
    encrypted: bool


class Route:
    """Makes the connection, and points it at the primary before each dial."""

    def __init__(self, url: str, *, connect_timeout_s: float) -> None:
        """Does not connect. Raises Rejected if the URL is none."""
        self.name = hide_password(url)
        self._service = ""
        self._sentinel: Sentinel | None = None
        timing: dict[str, Any] = {"socket_timeout": None, "socket_connect_timeout": connect_timeout_s}
        common = timing | {"protocol": 2, "driver_info": None}
        if not is_sentinel(url):
            self.connection: AbstractConnection = _direct(url, self.name, common)
            return
        address = parse_sentinel(url)
        self._service = address.service
        asking = {"socket_timeout": connect_timeout_s, "socket_connect_timeout": connect_timeout_s}
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
            address.sentinels, sentinel_kwargs=asking | address.sentinel_credentials | {"ssl": address.encrypted}
        )
        kind = SSLConnection if address.encrypted else Connection
        self.connection = kind(db=address.database, **address.credentials, **common)

    @property
    def may_move(self) -> bool:
        """True where the primary may be another server the next time."""
        return self._sentinel is not None

    async def point(self) -> None:
        """Raises redis.ConnectionError where no Sentinel knows a primary that lives."""
        if self._sentinel is not None:
            host, port = await self._sentinel.discover_master(self._service)
            assert isinstance(self.connection, Connection)
            self.connection.host, self.connection.port = host, port

    async def close(self) -> None:
        await self.connection.disconnect()
        for sentinel in self._sentinel.sentinels if self._sentinel else ():
            await sentinel.aclose()


def is_sentinel(url: str) -> bool:
    return url.partition("://")[0] in SENTINEL_SCHEMES


def parse_sentinel(url: str) -> SentinelAddress:
    """raises Rejected that says which part is wrong, what was found and what is wanted, and no password"""
    scheme, _, rest = url.partition("://")
    login, _, hosts = rest.rpartition("@")  # to the last @: a password may hold one
    parts = urlsplit(f"//{hosts}")
    names = [part for part in parts.path.split("/") if part]
    if not 1 <= len(names) <= 2:
        raise _wrong(url, f"names {len(names)} parts after the hosts, wanted the service and at most a database")
    database = names[1] if len(names) == 2 else "0"
    if not database.isdigit():
        raise _wrong(url, f"has database {database!r}, wanted a number")
    user, _, password = login.partition(":")
    options = dict(parse_qsl(parts.query))
    strays = sorted(options.keys() - set(OPTIONS))
    if strays:
        raise _wrong(url, f"has option {strays[0]!r}, known are {', '.join(OPTIONS)}")
    given = {"username": unquote(user), "password": unquote(password)} | options
    return SentinelAddress(
        sentinels=_sentinels(url, parts.netloc),
        service=unquote(names[0]),
        database=int(database),
        credentials={name: given[name] for name in ("username", "password") if given.get(name)},
        sentinel_credentials={name.removeprefix("sentinel_"): given[name] for name in OPTIONS[2:] if given.get(name)},
        encrypted=scheme == "rediss+sentinel",
    )


def hide_password(url: str) -> str:
    """The URL as it may be logged."""
    without = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)  # to the last @: a password may hold one
    return re.sub(r"(password=)[^&]*", r"\1***", without)


def _direct(url: str, name: str, options: dict[str, Any]) -> AbstractConnection:
    try:
        pool = ConnectionPool.from_url(url, **options)
        return pool.make_connection()  # type: ignore[no-untyped-call, no-any-return]
    except (ValueError, TypeError):
        # Without the cause: its text may quote a piece of the password.
        raise Rejected(
            f"redis_url is {name}, wanted redis://, rediss://, unix:// or {WANTED}", field="redis_url"
        ) from None


def _sentinels(url: str, hosts: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in hosts.split(","):
        match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(?::(\d{1,5}))?", part.strip())
        if match is None or not 0 < int(match[2] or SENTINEL_PORT) < 65536:
            raise _wrong(url, f"has the Sentinel {part.strip()!r}, wanted host or host:port")
        found.append((match[1].strip("[]"), int(match[2] or SENTINEL_PORT)))
    if len(found) > SENTINELS_MAX:
        raise _wrong(url, f"names {len(found)} Sentinels, the bound is {SENTINELS_MAX}")
    return tuple(found)


def _wrong(url: str, what: str) -> Rejected:
    return Rejected(f"redis_url {hide_password(url)} {what} ({WANTED})", field="redis_url")
