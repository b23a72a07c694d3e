"""Replay of recorded sessions (paper §7): N agents at once, each turn's prompt is everything so far plus the recorded
append, no tool time, exactly the recorded number of tokens generated.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dualpath.client import Client, Session
from dualpath.client.traces import TraceSession
from dualpath.model.turn import EndReason, ReadSide
from dualpath.v1 import admin_pb2

NIC_SETTLE_S = 1.2  # reports come at least each second: wait for the last bytes to be stated


@dataclass(slots=True)
class TurnRecord:
    """One replayed turn. The token lists are kept only when they are to be checked."""

    prompt_tokens: int
    hit_tokens: int
    generated_tokens: int
    ttft_s: float
    total_s: float
    end_reason: EndReason
    read_side: ReadSide | None
    attempts: int
    answers: int
    pe: str
    de: str
    prompt: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()


@dataclass(slots=True)
class ReplayRun:
    """All that one replay gave; `figures` is what is printed and written."""

    policy: str
    jct_s: float
    turns: list[TurnRecord]
    before: admin_pb2.CellStatus
    after: admin_pb2.CellStatus
    reconnects: int = 0
    snic_bytes: dict[str, int] = field(default_factory=dict)

    def figures(self) -> dict[str, object]:
        ttfts = sorted(turn.ttft_s for turn in self.turns)
        average = sum(self.snic_bytes.values()) / max(1, len(self.snic_bytes))
        reads = [turn for turn in self.turns if turn.hit_tokens]
        de_reads = sum(turn.read_side is ReadSide.DE for turn in reads)
        cpu_s = self.after.scheduler_cpu_s - self.before.scheduler_cpu_s
        return {
            "turns": len(self.turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in self.turns),
            "hit_tokens": sum(turn.hit_tokens for turn in self.turns),
            "generated_tokens": sum(turn.generated_tokens for turn in self.turns),
            "jct_s": round(self.jct_s, 3),
            "ttft_p50_s": round(_percentile(ttfts, 0.50), 4),
            "ttft_p99_s": round(_percentile(ttfts, 0.99), 4),
            "snic_bytes": self.snic_bytes,
            "snic_max_over_avg": round(max(self.snic_bytes.values(), default=0) / average, 3) if average else 0.0,
            "de_read_share": round(de_reads / len(reads), 3) if reads else 0.0,
            "scheduler_cpu_s_per_turn": round(cpu_s / max(1, len(self.turns)), 6),
            "attempts_more_than_one": sum(turn.attempts > 1 for turn in self.turns),
            "answered_once": sum(turn.answers == 1 for turn in self.turns),
            "reconnects": self.reconnects,
        }


async def replay(
    client: Client,
    sessions: Sequence[TraceSession],
    *,
    seed: int,
    vocab_size: int,
    keep_tokens: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReplayRun:
    """Run all sessions at once to their ends; the first turn that fails for good ends the replay with its error.

    seed  of the appended tokens: two replays with different seeds share no KV
    """
    total = sum(len(session.turns) for session in sessions)
    before = await client.status()
    records: list[TurnRecord] = []

    def note(record: TurnRecord) -> None:
        records.append(record)
        progress(len(records), total)

    started_s = time.monotonic()
    async with asyncio.TaskGroup() as agents:
        for number, session in enumerate(sessions):
            chance = random.Random(f"{seed}:{number}:{session.name}")
            agents.create_task(_agent(client, session, chance, vocab_size, keep_tokens, note))
    jct_s = time.monotonic() - started_s
    await asyncio.sleep(NIC_SETTLE_S)
    after = await client.status()
    return ReplayRun(
        policy=after.policy,
        jct_s=jct_s,
        turns=records,
        before=before,
        after=after,
        reconnects=client.reconnects,
        snic_bytes=_snic_difference(before, after),
    )


async def _agent(
    client: Client,
    recorded: TraceSession,
    chance: random.Random,
    vocab_size: int,
    keep_tokens: bool,
    note: Callable[[TurnRecord], None],
) -> None:
    session = Session(client)
    for turn in recorded.turns:
        if turn.keep is not None:
            session.keep(turn.keep)
        append = [chance.randrange(vocab_size) for _ in range(turn.append)]
        prompt = (*session.tokens, *append)
        started_s = time.monotonic()
        result = await session.turn(append, max_new_tokens=turn.gen, forced_tokens=True)
        handle = session.last_handle
        assert handle is not None, "a turn that was answered has a handle"
        ended_s = handle.ended_at_s or time.monotonic()
        note(
            TurnRecord(
                prompt_tokens=len(prompt),
                hit_tokens=result.hit_tokens,
                generated_tokens=len(result.tokens),
                ttft_s=(handle.first_token_at_s or ended_s) - started_s,
                total_s=ended_s - started_s,
                end_reason=result.end_reason,
                read_side=handle.last_event.read_side if handle.last_event else None,
                attempts=handle.last_event.attempt if handle.last_event else 0,
                answers=handle.results_seen,
                pe=handle.last_event.pe if handle.last_event else "",
                de=handle.last_event.de if handle.last_event else "",
                prompt=prompt if keep_tokens else (),
                generated=result.tokens if keep_tokens else (),
            )
        )


def verdict(figures: Mapping[str, Mapping[str, object]]) -> str:
    """One line on a comparison of basic with dualpath."""
    gain = speedup(figures)
    if gain is None:
        return ""
    basic, dual = figures["basic"], figures["dualpath"]
    times = f"{gain:.2f}x faster" if gain >= 1 else f"{1 / gain:.2f}x slower"
    return (
        f"dualpath is {times} than basic: {dual['jct_s']} s against {basic['jct_s']} s, "
        f"storage NICs max/avg {dual['snic_max_over_avg']} against {basic['snic_max_over_avg']}"
    )


def speedup(figures: Mapping[str, Mapping[str, object]]) -> float | None:
    """JCT of basic over JCT of dualpath; None unless both ran."""
    if "basic" not in figures or "dualpath" not in figures:
        return None
    return round(float(str(figures["basic"]["jct_s"])) / float(str(figures["dualpath"]["jct_s"])), 3)


def _snic_difference(before: admin_pb2.CellStatus, after: admin_pb2.CellStatus) -> dict[str, int]:
    """Bytes each node read from storage meanwhile; nodes that read nothing are there with 0."""
    start = {node.info.node_id: node.load.snic_read_bytes for group in before.groups for node in group.nodes}
    return {
        node.info.node_id: max(0, node.load.snic_read_bytes - start.get(node.info.node_id, 0))
        for group in after.groups
        for node in group.nodes
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
