"""Which scheduler is dialled next: quick within a round, slower from round to round, bounded."""

import random

import pytest

from dualpath.wire.rotation import BACKOFF_MAX_S, GAP_S, Rotation, split_addresses


def test_a_round_visits_every_address_quickly_and_then_pauses() -> None:
    rotation = Rotation("a:1, b:2,c:3", chance=random.Random(1))
    visited, waits = [rotation.address], []
    for _ in range(3):
        waits.append(rotation.move())
        visited.append(rotation.address)

    assert visited == ["a:1", "b:2", "c:3", "a:1"]
    assert waits[:2] == [GAP_S, GAP_S]
    assert rotation.rounds == 1


def test_pauses_grow_to_a_bound_and_success_begins_anew() -> None:
    rotation = Rotation("a:1", chance=random.Random(1))
    waits = [rotation.move() for _ in range(12)]
    rotation.good()

    assert max(waits) <= 1.5 * BACKOFF_MAX_S
    assert min(waits[6:]) >= 0.5 * BACKOFF_MAX_S
    assert rotation.move() < min(waits[6:])
    assert rotation.rounds == 1


@pytest.mark.parametrize("addresses", ["", " , ", []])
def test_no_address_is_an_error_that_shows_what_is_wanted(addresses: str | list[str]) -> None:
    with pytest.raises(ValueError, match="wanted host:port, or several"):
        split_addresses(addresses)
