"""The order in which ties fall."""

import pytest

from dualpath.model.ids import GroupId
from dualpath.scheduler.policy.snapshot import GroupView, in_rotation


def _groups(*ranks: int) -> list[GroupView]:
    return [GroupView(GroupId(f"g{rank}"), rank, 0) for rank in ranks]


@pytest.mark.parametrize(
    ("rotation", "ranks"),
    [(0, [0, 1, 2]), (1, [1, 2, 0]), (2, [2, 0, 1]), (3, [0, 1, 2]), (7, [1, 2, 0])],
)
def test_each_rotation_starts_one_place_further_on(rotation: int, ranks: list[int]) -> None:
    assert [group.rank for group in in_rotation(_groups(2, 0, 1), rotation)] == ranks


def test_gaps_in_the_ranks_make_no_difference() -> None:
    """Ranks 0, 2 and 4 have one remainder modulo 2; counted by rank, one group would win every tie."""
    first = [in_rotation(_groups(0, 2, 4), rotation)[0].rank for rotation in range(6)]

    assert first == [0, 2, 4, 0, 2, 4]


def test_nobody_has_no_order() -> None:
    assert in_rotation([], 5) == []
