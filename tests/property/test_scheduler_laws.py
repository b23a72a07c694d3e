"""Laws I1, I2 and I5 after every step of random lives; a scheduler rebuilt from the store is the same at any step."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from cell_support import Bench, FakeGroup, committed, running_cell, submission
from dualpath.model.errors import DualPathError
from dualpath.model.ids import GroupId
from dualpath.model.turn import Role, TurnState
from dualpath.scheduler.lifecycle import invariants
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.messages import AttemptKey
from strategies import examples

STEPS = (
    *("submit", "submit", "submit", "fetch", "fetch", "fetch", "fetch"),
    *("read", "prefill", "decode", "commit", "commit", "handback", "cancel", "stale", "lose", "rejoin", "deadline"),
)


@examples(1)
@given(st.integers(0, 2**32), st.sampled_from(["dualpath", "basic", "roundrobin"]))
def test_the_laws_hold_after_every_step_and_over_every_restart(seed: int, policy: str) -> None:
    asyncio.run(_live(random.Random(seed), policy))


async def _live(chance: random.Random, policy: str) -> None:
    async with running_cell(policy=policy) as bench:
        for name, role in (("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)):
            bench.join(FakeGroup(name, role, engines=chance.randint(1, 3), hbm_tokens=chance.choice([400, 5000])))
        for _ in range(40):
            await _step(bench, chance, chance.choice(STEPS))
            await bench.settled()
            invariants.check(bench.cell.core.ledger)
            await _same_after_restart(bench)


async def _step(bench: Bench, chance: random.Random, step: str) -> None:
    cell = bench.cell
    running = [entry for entry in cell.core.ledger.open_turns() if entry.state.is_running]
    present = [g for g in bench.groups.values() if GroupId(g.name) in cell.core.ledger.groups]
    match step:
        case "submit":
            await _submit(bench, chance)
        case "fetch" if present:
            await bench.fetch(chance.choice(present))
        case "lose" if present and chance.random() < 0.3:
            group = chance.choice(present)
            cell.core.ledger.groups[GroupId(group.name)].lease_ends_at_s = 0.0
            cell.leases.sweep()
        case "rejoin":
            group = chance.choice(list(bench.groups.values()))
            group.epoch += chance.randint(0, 1)
            group.report_seq = 0
            mine = [Core.key(e) for e in running if group.name in {s.group_id for s in (e.pe, e.de) if s}]
            bench.join(group, *(key for key in mine if chance.random() < 0.7))
        case "cancel":
            entries = list(cell.core.ledger.open_turns())
            if entries:
                cell.settle.cancel(chance.choice(entries).turn.turn_id)
        case "deadline" if chance.random() < 0.1:
            bench.clock.now_s += 4000
            for known in cell.core.ledger.groups.values():
                known.lease_ends_at_s = bench.clock.now_s + 3
            cell.settle.sweep()
        case _ if running:
            _news(bench, chance, step, chance.choice(running))


async def _submit(bench: Bench, chance: random.Random) -> None:
    try:
        number = chance.randrange(1000)
        await bench.cell.intake.submit(
            submission(f"k{number}", tokens=chance.randint(1, 300), new=chance.randint(1, 50))
        )
    except DualPathError:
        pass  # a repeated key with other content, or larger than any DE


def _news(bench: Bench, chance: random.Random, step: str, entry: TurnEntry) -> None:
    assert entry.pe is not None
    assert entry.de is not None
    settle, key = bench.cell.settle, Core.key(entry)
    pe, de = entry.pe.group_id, entry.de.group_id
    match step:
        case "read":
            settle.progress(pe, key, TurnState.READING, read_done=True, prefill_done=False)
        case "prefill":
            settle.progress(pe, key, TurnState.PREFILLING, read_done=False, prefill_done=True)
        case "decode":
            settle.progress(de, key, TurnState.DECODING, read_done=False, prefill_done=False)
        case "commit":
            settle.commit(de, key, committed(), ())
        case "handback":
            settle.handback(chance.choice([pe, de]), key, "refused", "test")
        case "stale":
            before = bench.cell.core.ledger.counts.committed
            settle.commit(de, AttemptKey(key.turn_id, key.attempt + chance.choice([-1, 1])), committed(), ())
            settle.commit(pe, key, committed(), ())
            assert bench.cell.core.ledger.counts.committed == before


async def _same_after_restart(bench: Bench) -> None:
    core = bench.cell.core
    stored = await bench.store.load(core.tenure)
    rebuilt = Ledger.rebuild(stored, now_s=bench.clock.now_s)

    assert rebuilt.records == core.ledger.records
    assert rebuilt.counters() == core.ledger.counters()
    assert _lines(rebuilt) == _lines(core.ledger)
    assert {t: _rough(e) for t, e in rebuilt.turns.items()} == {t: _rough(e) for t, e in core.ledger.turns.items()}


def _rough(entry: TurnEntry) -> tuple[object, ...]:
    """All but where exactly a running attempt stands, which is learned anew."""
    state = TurnState.PLANNED if entry.state.is_running else entry.state
    return (entry.turn.tokens, entry.turn.arrival, state, entry.attempt, entry.pe, entry.de, entry.result)


def _lines(ledger: Ledger) -> dict[str, tuple[str, ...]]:
    return {line.name: tuple(line) for line in ledger.lines() if len(line)}
