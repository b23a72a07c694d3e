"""A node's storage NIC: one FIFO with a goodput, and a latency that overlaps with the next reads (paper §8)."""

from collections import deque


class StorageNic:
    """Reads are served one after the other in the order in which they were asked for, and complete in that order.

    tokens_per_s      goodput in KV tokens of the model, with any number of reads in flight
    latency_s         from the end of a read's service to its data being there, and
    latency_token_s   per token of it: one read alone does not fill the NIC
    window_tokens     tokens read in each window of `window_s`, for the balance over nodes
    """

    __slots__ = ("_free_at_s", "_outstanding", "_ready_at_s", "busy_s", "latency_s", "latency_token_s", "queue_tokens",
                 "read_tokens", "tokens_per_s", "window_s", "window_tokens")  # fmt: skip

    def __init__(self, tokens_per_s: float, latency_s: float, latency_token_s: float, *, window_s: float) -> None:
        self.tokens_per_s = tokens_per_s
        self.latency_s = latency_s
        self.latency_token_s = latency_token_s
        self.window_s = window_s
        self.window_tokens: list[int] = []
        self.queue_tokens = 0  # asked for and not there yet: read_q
        self.read_tokens = 0
        self.busy_s = 0.0
        self._free_at_s = self._ready_at_s = 0.0
        self._outstanding: deque[tuple[float, int]] = deque()

    def read(self, now_s: float, tokens: int) -> float:
        """Queue a read; returns when its data will be there."""
        start = self._free_at_s if self._free_at_s > now_s else now_s
        served = tokens / self.tokens_per_s
        end = self._free_at_s = start + served
        self.busy_s += served
        self.read_tokens += tokens
        window = int(end / self.window_s)
        while len(self.window_tokens) <= window:
            self.window_tokens.append(0)
        self.window_tokens[window] += tokens
        ready = end + self.latency_s + tokens * self.latency_token_s
        if ready < self._ready_at_s:
            ready = self._ready_at_s
        else:
            self._ready_at_s = ready
        self._outstanding.append((ready, tokens))
        return ready

    def settle(self, now_s: float) -> int:
        """Tokens asked for and not there at `now_s`."""
        outstanding = self._outstanding
        while outstanding and outstanding[0][0] <= now_s:
            self.queue_tokens -= outstanding.popleft()[1]
        return self.queue_tokens
