"""One-sided transfers over real sockets: what lands, what is refused, what happens when a side goes away."""

import random
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise

import pytest

from dualpath.engine_agent.transfer.tcp import TcpTransfer
from dualpath.model.errors import Refused, Rejected, Stale

WAIT_S = 5.0


@pytest.fixture
def de() -> Iterator[TcpTransfer]:
    transfer = TcpTransfer()
    yield transfer
    transfer.close()


@pytest.fixture
def pe() -> Iterator[TcpTransfer]:
    transfer = TcpTransfer()
    yield transfer
    transfer.close()


def _memory(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def test_a_write_scatters_its_pieces_into_the_region(pe: TcpTransfer, de: TcpTransfer) -> None:
    memory = _memory(bytes(12))
    region = de.register(memory)

    pe.connect(de.address).write(region, [(8, _memory(b"abcd")), (0, _memory(b"xy"))]).result(WAIT_S)

    assert bytes(memory) == b"xy\0\0\0\0\0\0abcd"


def test_a_read_sees_every_write_posted_before_it(pe: TcpTransfer, de: TcpTransfer) -> None:
    region = de.register(_memory(bytes(1 << 20)))
    link = pe.connect(de.address)
    sent, got = _memory(random.Random(1).randbytes(1 << 20)), _memory(bytes(1 << 20))

    link.write(region, [(0, sent)])
    link.read(region, [(0, got)]).result(WAIT_S)

    assert got == sent


def test_thousands_of_small_pieces_arrive_in_order(pe: TcpTransfer, de: TcpTransfer) -> None:
    memory = _memory(bytes(4 * 5000))
    region = de.register(memory)
    pieces = [(4 * i, _memory(i.to_bytes(4, "big"))) for i in range(5000)]

    pe.connect(de.address).write(region, pieces).result(WAIT_S)

    assert bytes(memory) == b"".join(i.to_bytes(4, "big") for i in range(5000))


def test_a_deregistered_region_refuses_late_writes_and_keeps_the_link(pe: TcpTransfer, de: TcpTransfer) -> None:
    memory, other = _memory(bytes(4)), _memory(bytes(4))
    dead, live = de.register(memory), de.register(other)
    link = pe.connect(de.address)
    de.deregister(dead).result(WAIT_S)

    with pytest.raises(Stale, match="released"):
        link.write(dead, [(0, _memory(b"late"))]).result(WAIT_S)
    link.write(live, [(0, _memory(b"good"))]).result(WAIT_S)

    assert (bytes(memory), bytes(other)) == (bytes(4), b"good")


def test_a_piece_beyond_the_region_is_rejected_and_changes_nothing(pe: TcpTransfer, de: TcpTransfer) -> None:
    memory = _memory(bytes(8))
    region = de.register(memory)

    with pytest.raises(Rejected, match="beyond"):
        pe.connect(de.address).write(region, [(0, _memory(b"good")), (6, _memory(b"bad"))]).result(WAIT_S)

    assert bytes(memory) == bytes(8)


def test_region_numbers_cannot_be_guessed_from_one_another(de: TcpTransfer) -> None:
    numbers = [de.register(_memory(b"x")) for _ in range(100)]

    assert len(set(numbers)) == 100
    assert len({b - a for a, b in pairwise(numbers)}) == 99


def test_when_the_peer_goes_away_every_open_request_fails(pe: TcpTransfer, de: TcpTransfer) -> None:
    region = de.register(_memory(bytes(1 << 16)))
    link = pe.connect(de.address)
    link.write(region, [(0, _memory(b"x"))]).result(WAIT_S)
    de.close()

    futures: list[Future[None]] = []
    for _ in range(3):
        try:
            futures.append(link.write(region, [(0, _memory(b"x"))]))
        except Refused as error:
            assert error.reason == "PEER_LOST"
    for future in futures:
        with pytest.raises(Refused, match="lost"):
            future.result(WAIT_S)


def test_closing_a_link_fails_its_requests_once_and_new_ones_at_once(pe: TcpTransfer, de: TcpTransfer) -> None:
    link = pe.connect(de.address)
    link.close()
    link.close()

    with pytest.raises(Refused):
        link.write(1, [(0, _memory(b"x"))])


def test_an_unreachable_peer_is_named(pe: TcpTransfer, de: TcpTransfer) -> None:
    de.close()

    with pytest.raises(Refused, match=de.address):
        pe.connect(de.address)


def test_deregistering_twice_is_fine(de: TcpTransfer) -> None:
    region = de.register(_memory(b"x"))

    de.deregister(region).result(WAIT_S)
    de.deregister(region).result(WAIT_S)
