"""A turn on its way through the simulated machine, with the instants at which it passed each stage."""

from dualpath.model.ids import TurnId
from dualpath.model.turn import ReadSide


class SimTurn:
    """One turn. Mutable and slotted: a large run makes five million of them.

    It has the fields of the policy's `WaitingTurn`, so it stands in the lines itself.

    remaining_tokens  miss tokens that are not computed yet
    pe, de            engine numbers, -1 until placed
    split_tokens      of the hit, read on the other side than `side` (0 but for split reads)
    """

    __slots__ = (
        "arrival",
        "de",
        "decoding_at_s",
        "granted_at_s",
        "hit_tokens",
        "index",
        "max_new_tokens",
        "miss_tokens",
        "pe",
        "placed_at_s",
        "planned_at_s",
        "prefilled_at_s",
        "prefilling_at_s",
        "prompt_tokens",
        "ready_at_s",
        "remaining_tokens",
        "session",
        "side",
        "split_tokens",
        "submitted_at_s",
        "turn_id",
    )

    def __init__(self, session: int, index: int, *, hit: int, miss: int, gen: int, arrival: int) -> None:
        self.session = session
        self.index = index
        self.turn_id = TurnId(str(arrival))
        self.arrival = arrival
        self.hit_tokens = hit
        self.miss_tokens = self.remaining_tokens = miss
        self.prompt_tokens = hit + miss
        self.max_new_tokens = gen
        self.pe = self.de = -1
        self.split_tokens = 0
        self.side: ReadSide | None = None
        self.submitted_at_s = self.placed_at_s = self.planned_at_s = self.granted_at_s = 0.0
        self.ready_at_s = self.prefilling_at_s = self.prefilled_at_s = self.decoding_at_s = 0.0

    @property
    def total_tokens_max(self) -> int:
        return self.prompt_tokens + self.max_new_tokens
