"""Bounds and times of the service, each with a name (see `dualpath scheduler --help`)."""

from dataclasses import dataclass

from dualpath.scheduler.lifecycle.order import Order


@dataclass(frozen=True, slots=True)
class ServiceBounds:
    """Counts are hard bounds; what would pass one is refused with the number found and the number allowed."""

    waiting_turns_max: int = 100_000
    waiting_tokens_max: int = 20_000_000_000
    waiting_bytes_max: int = 4 << 30  # of prompts: token ids and block keys
    tenant_turns_max: int = 0  # waiting turns of one tenant; 0: only the bounds of the whole
    tenant_tokens_max: int = 0
    prompt_tokens_max: int = 4_000_000
    new_tokens_max: int = 1_000_000
    attempts_max: int = 3
    lease_s: float = 3.0  # a group silent for longer has lost its turns
    report_s: float = 1.0  # a group reports at least this often
    order: Order = Order.FIFO  # in which lines are served
    slow_start_s: float = 5.0  # over which an engine that has just come gets its full share
    deadline_s: float = 3600.0  # of a turn that names none
    sweep_s: float = 0.25  # how often leases and deadlines are looked at
    retention_s: float = 900.0  # how long an ended turn can still be asked for
    ended_turns_max: int = 50_000
    contexts_max: int = 1 << 20  # committed blocks in the context index
    journal_max: int = 50_000  # change sets waiting for the store
    commit_max: int = 256  # change sets in one call to the store
    news_max: int = 64  # events waiting for one slow client; the last one is always kept
    watchers_max: int = 8  # clients that may follow one turn
