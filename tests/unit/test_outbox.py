"""What waits for a stream leaves in batches, in order, within bounds."""

import asyncio

import pytest

from dualpath.wire.outbox import BATCH_BYTES_MAX, BATCH_ITEMS_MAX, Outbox


@pytest.mark.asyncio
async def test_everything_leaves_once_and_in_order() -> None:
    outbox = Outbox[int](1000, lambda _: 1)
    for number in range(600):
        assert outbox.put(number)

    batches = [await outbox.take() for _ in range(3)]

    assert [len(batch) for batch in batches] == [BATCH_ITEMS_MAX, BATCH_ITEMS_MAX, 600 - 2 * BATCH_ITEMS_MAX]
    assert [number for batch in batches for number in batch] == list(range(600))


@pytest.mark.asyncio
async def test_a_batch_keeps_to_its_bytes_and_a_large_item_travels_alone() -> None:
    sizes = [10, BATCH_BYTES_MAX - 10, 1, 5 * BATCH_BYTES_MAX, 1]
    outbox = Outbox[int](10, lambda size: size)
    for size in sizes:
        outbox.put(size)

    assert [await outbox.take() for _ in range(4)] == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]


@pytest.mark.asyncio
async def test_a_writer_waits_for_the_first_item_and_a_full_box_says_so() -> None:
    outbox = Outbox[str](1, len)
    writer = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)

    assert outbox.put("a")
    assert not outbox.put("b")
    assert await writer == ["a"]
    assert outbox.put("b")
