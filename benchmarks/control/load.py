"""What a run of the load generator is told: the shape of the cell and the load on it. Plain values, sent as JSON."""

from dataclasses import dataclass

BLOCK_TOKENS = 64
PROMPT_TOKENS, NEW_TOKENS = 60, 4  # of a measured turn after its context: one new block
SHAPES = {8: (1, 1, 4), 64: (3, 5, 8), 1152: (48, 96, 8)}  # engines -> PE groups, DE groups, engines of a group
REPORT_GAP_S = 0.01  # reports of one leader are at least this far apart, as our agents' are


@dataclass(frozen=True, slots=True)
class Load:
    """One run.

    rate         turns per second, sent at random instants whatever comes back (open loop); 0: closed loop
    outstanding  turns that are kept under way in a closed loop
    blocks       of the context each turn continues; all of them are hits
    contexts     how many different ones
    """

    host: str
    port: int
    cell: str
    scheduler_pid: int
    redis_pid: int
    engines: int = 1152
    rate: float = 0.0
    outstanding: int = 2048
    seconds: float = 20.0
    warm_up_s: float = 3.0
    drain_s: float = 60.0
    blocks: int = 8
    contexts: int = 64
    client_streams: int = 4
    report_gap_s: float = REPORT_GAP_S
    seed: int = 1

    @property
    def context_tokens(self) -> int:
        return self.blocks * BLOCK_TOKENS
