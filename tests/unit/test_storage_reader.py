"""The bounded reader: order, the longest good prefix, and a read queue that always comes back to zero."""

import random
import threading

import pytest

from dualpath.model.errors import BlockSizeError, Refused
from dualpath.model.ids import ROOT_KEY, BlockKey
from dualpath.model.keys import block_key, namespace_for
from dualpath.model.layout import BlockLayout
from dualpath.storage_shim.backends.memory import MemoryBackend
from dualpath.storage_shim.outcomes import BlockHeader, MissReason
from dualpath.storage_shim.reader import BlockReader, ReadOutcome
from dualpath.storage_shim.wrappers.faulty import Fault, FaultyBackend
from dualpath.storage_shim.writer import BlockWriter

LAYOUT = BlockLayout(num_layers=1, block_tokens=4, bytes_per_token_layer=2)
SPACE = namespace_for("tiny", "r1", "float32", LAYOUT)
WAIT_S = 5.0


def _stored(count: int) -> tuple[MemoryBackend, list[BlockKey]]:
    backend, keys = MemoryBackend(SPACE, LAYOUT), []
    for number in range(count):
        key = block_key(SPACE, ROOT_KEY, (number, 0, 0, 0))
        backend.write(BlockHeader(key, ROOT_KEY, (number, 0, 0, 0)), memoryview(bytes([number] * 8)))
        keys.append(key)
    return backend, keys


def _room(blocks: int) -> memoryview:
    return memoryview(bytearray(8 * blocks))


def test_blocks_land_in_order_in_the_callers_memory() -> None:
    backend, keys = _stored(3)
    reader, room = BlockReader(backend, LAYOUT), _room(3)

    outcome = reader.wait(reader.submit(reader.prepare(keys, room)), WAIT_S)
    reader.close()

    assert outcome == ReadOutcome(3, ())
    assert bytes(room) == bytes([0] * 8 + [1] * 8 + [2] * 8)


def test_what_lies_behind_the_first_miss_does_not_count() -> None:
    backend, keys = _stored(4)
    reader = BlockReader(FaultyBackend(backend, reads={1: Fault.CORRUPT}), LAYOUT, threads=1)

    outcome = reader.wait(reader.submit(reader.prepare(keys, _room(4))), WAIT_S)
    reader.close()

    assert outcome.good_blocks == 1
    assert [(index, miss.reason) for index, miss in outcome.misses] == [(1, MissReason.CORRUPT)]


def test_the_read_queue_counts_tokens_not_yet_read() -> None:
    backend, keys = _stored(2)
    gate = threading.Event()
    stalled = FaultyBackend(backend, reads={0: Fault.SLOW}, stall=lambda: (gate.wait(WAIT_S), None)[1])
    reader = BlockReader(stalled, LAYOUT, threads=1)

    ticket = reader.submit(reader.prepare(keys, _room(2)))
    while_reading = reader.read_queue_tokens
    gate.set()
    reader.wait(ticket, WAIT_S)

    assert (while_reading, reader.read_queue_tokens) == (8, 0)
    reader.close()


def test_older_requests_are_served_first() -> None:
    backend, keys = _stored(6)
    order: list[BlockKey] = []

    class Noting(MemoryBackend):
        def read(self, key, into):  # type: ignore[no-untyped-def]
            order.append(key)
            return backend.read(key, into)

    reader = BlockReader(Noting(SPACE, LAYOUT), LAYOUT, threads=1)
    tickets = [reader.submit(reader.prepare(keys[at : at + 2], _room(2))) for at in (0, 2, 4)]
    for ticket in tickets:
        reader.wait(ticket, WAIT_S)
    reader.close()

    assert order == keys


def test_a_full_queue_refuses_with_the_bound() -> None:
    backend, keys = _stored(1)
    gate = threading.Event()
    stalled = FaultyBackend(backend, rate=0.0, reads={0: Fault.SLOW}, stall=lambda: (gate.wait(WAIT_S), None)[1])
    reader = BlockReader(stalled, LAYOUT, threads=1, requests_max=2)
    tickets = []
    with pytest.raises(Refused, match="2 reads wait, the bound is 2"):
        while True:
            tickets.append(reader.submit(reader.prepare(keys, _room(1))))
    gate.set()
    for ticket in tickets:
        assert reader.wait(ticket, WAIT_S).good_blocks == 1
    reader.close()


def test_memory_of_another_size_is_an_error() -> None:
    backend, keys = _stored(2)
    reader = BlockReader(backend, LAYOUT)

    with pytest.raises(BlockSizeError, match="2 blocks want 16"):
        reader.prepare(keys, _room(3))
    reader.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_read_queue_is_empty_after_any_mix_of_faults_and_cancels(seed: int) -> None:
    chance = random.Random(seed)
    backend, keys = _stored(8)
    reader = BlockReader(FaultyBackend(backend, rate=0.3, chance=random.Random(seed)), LAYOUT, threads=3)
    tickets = []
    for _ in range(40):
        chosen = chance.sample(keys, chance.randint(0, 8))
        tickets.append(reader.submit(reader.prepare(chosen, _room(len(chosen)))))
        if chance.random() < 0.3:
            chance.choice(tickets).cancel()
    for ticket in tickets:
        outcome = reader.wait(ticket, WAIT_S)
        assert outcome.good_blocks <= len(ticket.request.keys)

    assert reader.read_queue_tokens == 0
    reader.close()


def test_the_writer_goes_on_after_a_full_disk() -> None:
    backend = MemoryBackend(SPACE, LAYOUT)
    writer = BlockWriter(FaultyBackend(backend, writes={0: Fault.FULL}), threads=1)
    headers = [BlockHeader(block_key(SPACE, ROOT_KEY, (n, 0, 0, 0)), ROOT_KEY, (n, 0, 0, 0)) for n in range(2)]

    futures = [writer.submit(header, memoryview(bytes(8))) for header in headers]

    with pytest.raises(Refused, match="no room"):
        futures[0].result(WAIT_S)
    futures[1].result(WAIT_S)
    writer.close()
    assert (writer.written, writer.failed, writer.open_blocks) == (1, 1, 0)
    assert backend.contains(headers[1].key)


def test_the_writer_refuses_what_passes_its_bound() -> None:
    gate = threading.Event()
    stalled = FaultyBackend(
        MemoryBackend(SPACE, LAYOUT), writes={0: Fault.SLOW}, stall=lambda: (gate.wait(WAIT_S), None)[1]
    )
    writer = BlockWriter(stalled, threads=1, queue_max=1)
    header = BlockHeader(block_key(SPACE, ROOT_KEY, (1, 0, 0, 0)), ROOT_KEY, (1, 0, 0, 0))
    first = writer.submit(header, memoryview(bytes(8)))

    with pytest.raises(Refused, match="the bound is 1"):
        writer.submit(header, memoryview(bytes(8)))
    gate.set()
    first.result(WAIT_S)
    writer.close()
