"""Open fetches: which groups ask for turns, and which of them something has happened to that may let them get one.

A group with an open fetch and nothing new since its last look would find what it found then: nothing. At hundreds of
groups most looks are of that kind, so dispatch asks only the others.
"""

from bisect import bisect_left, insort

from dualpath.scheduler.lifecycle.engines import GroupEntry


class Fetches:
    """The groups of one role that ask, in the order of their ranks."""

    def __init__(self) -> None:
        self._open: dict[int, GroupEntry] = {}
        self._ranks: list[int] = []
        self._looks: set[int] = set()

    def __len__(self) -> int:
        return len(self._ranks)

    def open(self, group: GroupEntry) -> None:
        """The group asks; it is looked at at least once."""
        if group.rank not in self._open:
            insort(self._ranks, group.rank)
        self._open[group.rank] = group
        self._looks.add(group.rank)
        group.fetch_open = True

    def close(self, group: GroupEntry) -> None:
        group.fetch_open = False
        if self._open.pop(group.rank, None) is not None:
            del self._ranks[bisect_left(self._ranks, group.rank)]
            self._looks.discard(group.rank)

    def look(self, group: GroupEntry) -> None:
        """Something changed for this group; nothing to do where it does not ask."""
        if group.fetch_open:
            self._looks.add(group.rank)

    def look_all(self) -> None:
        """Something changed for every group, such as the line they all take from."""
        self._looks.update(self._ranks)

    def take(self, rotation: int) -> list[GroupEntry]:
        """The groups to look at now, beginning with that one of all open fetches at which the rotation stands."""
        if not self._looks:
            return []
        looks = sorted(self._looks)
        self._looks.clear()
        if len(looks) > 1:
            first = self._ranks[rotation % len(self._ranks)]
            at = bisect_left(looks, first)
            looks = looks[at:] + looks[:at]
        return [self._open[rank] for rank in looks]
