"""What a Redis must be before a scheduler trusts it with accepted turns."""

import re
from collections.abc import Sequence

from redis.exceptions import ResponseError

from dualpath.model.errors import Broken, OutcomeUnknown, Rejected
from dualpath.scheduler.stores.redis_connection import RedisConnection

VERSION_MIN = (6, 2)  # XREVRANGE with open ranges, ACLs, scripts replicated by their effects


async def check_server(connection: RedisConnection, *, require_durable: bool) -> tuple[str, ...]:
    """Look at version, eviction and durability of the server.

    return  warnings: what would lose accepted turns, where require_durable is off
    raises  Rejected naming found and wanted: an old version, eviction of keys, with require_durable also a missing AOF;
            Refused while the server is away or loading
    """
    try:
        replies = await connection.exchange(("INFO",), ("CONFIG", "GET", "*append*"), ("CONFIG", "GET", "maxmemory*"))
    except OutcomeUnknown as error:
        raise connection.refused(f"no answer at start: {error}") from error
    info_reply, *config_replies = replies
    if isinstance(info_reply, ResponseError):
        raise connection.translate(info_reply)
    info = _parse_info(info_reply)
    config = {name: value for reply in config_replies for name, value in _parse_config(reply).items()}

    _check_version(connection.name, info)
    _check_eviction(connection.name, config or info)
    lacks = _lacking_durability(info, config)
    if lacks and require_durable:
        raise _rejected(connection.name, "; ".join(lacks) + "; or set require_durable off and accept the loss")
    return tuple(f"Redis {connection.name} may lose accepted turns in a crash: {lack}" for lack in lacks)


def _check_version(name: str, info: dict[str, str]) -> None:
    found = info.get("redis_version", "unknown")
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < VERSION_MIN:
        raise _rejected(name, f"version is {found}, wanted {'.'.join(map(str, VERSION_MIN))} or newer")


def _check_eviction(name: str, facts: dict[str, str]) -> None:
    maxmemory = facts.get("maxmemory", "0")
    policy = facts.get("maxmemory-policy", facts.get("maxmemory_policy", "noeviction"))
    if maxmemory != "0" and policy != "noeviction":
        raise _rejected(name, f"maxmemory-policy is {policy}, wanted noeviction: it would throw accepted turns away")


def _lacking_durability(info: dict[str, str], config: dict[str, str]) -> Sequence[str]:
    if info.get("aof_enabled", "0") != "1":
        return (f"appendonly is {config.get('appendonly', 'no')}, wanted yes",)
    found = config.get("appendfsync", "unknown (this server does not let us read it)")
    return () if found == "always" else (f"appendfsync is {found}, wanted always",)


def _rejected(name: str, message: str) -> Rejected:
    return Rejected(f"Redis {name}: {message}", field="redis_url", reason="STORE_UNSAFE", precondition=True)


def _parse_info(reply: object) -> dict[str, str]:
    if not isinstance(reply, bytes):
        raise Broken(f"INFO answered {type(reply).__name__}, wanted text", reason="STORE_BROKEN")
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _parse_config(reply: object) -> dict[str, str]:
    """Empty where the server forbids CONFIG, as hosted ones do."""
    if not isinstance(reply, list):
        return {}
    words = [word.decode(errors="replace") for word in reply if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=True))
