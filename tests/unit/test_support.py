"""The waiting helpers return early, and say what they waited for when they give up."""

import asyncio
import socket

import pytest

import support


async def test_a_wait_ends_as_soon_as_its_condition_holds() -> None:
    happened = asyncio.Event()
    asyncio.get_running_loop().call_soon(happened.set)

    await support.wait_until(happened.is_set, timeout_s=60)

    assert happened.is_set()


async def test_a_wait_that_gives_up_names_its_condition() -> None:
    with pytest.raises(AssertionError, match="the agent registers"):
        await support.wait_until(lambda: False, timeout_s=0, what="the agent registers")


def test_a_wait_without_a_loop_gives_up_as_well() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: .*never"):
        support.wait_until_sync(_never, timeout_s=0)


def test_a_free_port_can_be_bound(free_port: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port))

        assert server.getsockname()[1] == free_port


def _never() -> bool:
    return False
