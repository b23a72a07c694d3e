"""URLs of Redis: where Sentinels name the primary, each part is read or named as wrong, and no password is shown."""

import pytest

from dualpath.model.errors import Rejected
from dualpath.scheduler.stores.redis_address import SENTINELS_MAX, Route, hide_password, parse_sentinel


def test_a_sentinel_url_with_every_part() -> None:
    address = parse_sentinel("rediss+sentinel://ann:p%40ss@s1,s2:7000,[::1]:7001/cell/3?sentinel_password=watch")

    assert address.sentinels == (("s1", 26379), ("s2", 7000), ("::1", 7001))
    assert (address.service, address.database, address.encrypted) == ("cell", 3, True)
    assert address.credentials == {"username": "ann", "password": "p@ss"}
    assert address.sentinel_credentials == {"password": "watch"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://s1:26379", "names 0 parts after the hosts"),
        ("redis+sentinel://s1/cell/0/more", "names 3 parts after the hosts"),
        ("redis+sentinel://s1/cell/first", "has database 'first', wanted a number"),
        ("redis+sentinel://s1:port/cell", "has the Sentinel 's1:port'"),
        ("redis+sentinel://s1:70000/cell", "has the Sentinel 's1:70000'"),
        ("redis+sentinel:///cell", "has the Sentinel ''"),
        ("redis+sentinel://s1/cell?pasword=x", "has option 'pasword', known are password"),
        (f"redis+sentinel://{','.join(['s'] * 17)}/cell", f"names 17 Sentinels, the bound is {SENTINELS_MAX}"),
        ("http://s1/cell", "wanted redis://, rediss://, unix:// or redis\\+sentinel://"),
    ],
)
def test_a_wrong_part_is_named(url: str, message: str) -> None:
    with pytest.raises(Rejected, match=message) as caught:
        Route(url, connect_timeout_s=1.0)

    assert caught.value.field == "redis_url"


def test_no_password_is_in_the_error_or_the_name() -> None:
    url = "redis+sentinel://ann:se:cr@et@s1/cell?sentinel_password=hidden&stray=1"
    with pytest.raises(Rejected) as caught:
        parse_sentinel(url)

    for text in (str(caught.value), hide_password(url)):
        assert not [secret for secret in ("se:cr", "et@s1", "hidden") if secret in text]
