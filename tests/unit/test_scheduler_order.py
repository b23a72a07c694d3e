"""The order of lines: exact by arrival unless tenants share fairly; bounds of tenants; turns that are passed over."""

import pytest

from cell_support import Bench, CountingIds, FakeGroup, ManualClock, running_cell, submission
from dualpath.model.errors import Refused, Rejected
from dualpath.model.ids import GroupId
from dualpath.model.turn import Role, TurnState
from dualpath.scheduler.lifecycle.order import Order
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.stores.memory import MemoryStore

FAIR = ServiceBounds(order=Order.FAIR)
ONE = PolicyLimits(alpha_tokens=1000, beta_tokens=0)  # a PE takes one turn at a time


async def _submit(bench: Bench, key: str, tenant: str, *, priority: int = 0, tokens: int = 10) -> TurnEntry:
    return await bench.cell.intake.submit(submission(key, tokens=tokens, tenant=tenant, priority=priority))


def _line(bench: Bench) -> list[str]:
    ledger = bench.cell.core.ledger
    return [ledger.turns[turn_id].turn.idempotency_key for turn_id in ledger.prefill_fifo]


@pytest.mark.parametrize("order", Order)
async def test_one_turn_of_another_tenant_behind_a_thousand(order: Order) -> None:
    async with running_cell(bounds=ServiceBounds(order=order)) as bench:
        for n in range(1000):
            await _submit(bench, f"a{n}", "ann")
        await _submit(bench, "b", "bob")
        place = _line(bench).index("b")

    assert place == (1000 if order is Order.FIFO else 1)


async def test_tenants_take_turns_by_tokens_and_priority_doubles_a_share() -> None:
    async with running_cell(bounds=FAIR) as bench:
        for n in range(6):
            await _submit(bench, f"long{n}", "ann", tokens=20)
        for n in range(6):
            await _submit(bench, f"short{n}", "bob", tokens=10)
        for n in range(6):
            await _submit(bench, f"high{n}", "cat", tokens=20, priority=1)
        head = _line(bench)[:10]

    tenants = [name.rstrip("0123456789") for name in head]
    assert (tenants.count("long"), tenants.count("short"), tenants.count("high")) == (2, 4, 4)


async def test_in_the_order_of_arrival_nothing_else_counts() -> None:
    async with running_cell() as bench:
        for n in range(6):
            await _submit(bench, f"{n}", f"tenant{n % 2}", priority=n % 4)
        line = _line(bench)

    assert line == [f"{n}" for n in range(6)]


async def test_who_was_idle_earns_no_credit_for_the_time() -> None:
    async with running_cell(bounds=FAIR, limits=ONE) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        for n in range(20):
            await _submit(bench, f"a{n}", "ann")
        for _ in range(10):
            await _end(bench, await _next(bench, pe))
        for n in range(5):
            await _submit(bench, f"b{n}", "bob")
        head = _line(bench)[:6]

    assert sum(name.startswith("a") for name in head) == 3


async def test_a_turn_that_returns_finds_its_old_place_in_the_fair_order() -> None:
    async with running_cell(bounds=FAIR, limits=ONE) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        for n in range(3):
            await _submit(bench, f"a{n}", "ann")
            await _submit(bench, f"b{n}", "bob")
        before = _line(bench)
        placed = await _next(bench, pe)
        bench.cell.settle.return_turn(placed, "test")

        assert _line(bench) == before


async def test_a_turn_that_too_many_went_before_is_promoted() -> None:
    limits = PolicyLimits(alpha_tokens=1000, beta_tokens=0, overtakes_max=5)
    async with running_cell(bounds=FAIR, limits=limits) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        await _submit(bench, "a", "ann")
        heavy = await _submit(bench, "heavy", "ann")
        placed = []
        for n in range(12):  # each from a tenant that has just come
            await _submit(bench, f"x{n}", f"new{n}")
            entry = await _next(bench, pe)
            placed.append(entry.turn.idempotency_key)
            await _end(bench, entry)

    assert heavy.promoted
    assert placed.index("heavy") <= 7
    assert "promoted" in [note.step for note in heavy.decisions]


async def test_the_fair_order_survives_a_restart_and_goes_back_to_arrival_where_that_is_wanted() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    async with running_cell(store=store, clock=clock, ids=ids, bounds=FAIR) as bench:
        for n in range(4):
            await _submit(bench, f"a{n}", "ann")
        for n in range(2):
            await _submit(bench, f"b{n}", "bob")
        before = _line(bench)
    async with running_cell(store=store, clock=clock, ids=ids, bounds=FAIR) as bench:
        again = _line(bench)
        await _submit(bench, "b2", "bob")
        after = _line(bench)
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        exact = _line(bench)

    assert before == again == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert after.index("b2") < after.index("a3")
    assert exact == ["a0", "a1", "a2", "a3", "b0", "b1", "b2"]


async def test_bounds_of_one_tenant_leave_room_for_the_others() -> None:
    async with running_cell(bounds=ServiceBounds(tenant_turns_max=2, tenant_tokens_max=100)) as bench:
        for n in range(2):
            await _submit(bench, f"a{n}", "ann")
        with pytest.raises(Refused, match="2 turns of tenant 'ann' wait, its bound is 2"):
            await _submit(bench, "a2", "ann")
        with pytest.raises(Refused, match="101 tokens of tenant 'bob' would wait, its bound is 100"):
            await _submit(bench, "b0", "bob", tokens=101)
        await _submit(bench, "b1", "bob", tokens=100)
        sums = bench.cell.core.ledger.waiting

        assert (sums.all.turns, sums.of("ann").turns, sums.of("bob").tokens) == (3, 2, 100)


async def test_bytes_of_prompts_are_bounded() -> None:
    async with running_cell(bounds=ServiceBounds(waiting_bytes_max=400)) as bench:
        await _submit(bench, "a", "", tokens=101)
        with pytest.raises(Refused, match="404 bytes of prompts wait, the bound is 400"):
            await _submit(bench, "b", "")


@pytest.mark.parametrize(("fields", "message"), [({"tenant": "x" * 65}, "tenant"), ({"priority": 4}, "priority is 4")])
async def test_malformed_tenants_and_priorities_are_rejected(fields: dict[str, object], message: str) -> None:
    async with running_cell() as bench:
        with pytest.raises(Rejected, match=message):
            await bench.cell.intake.submit(submission("a", **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("skip_ahead_turns", "planned"), [(0, 1), (1, 3)])
async def test_a_turn_without_room_stops_those_behind_it_unless_they_may_skip_ahead(
    skip_ahead_turns: int, planned: int
) -> None:
    limits = PolicyLimits(10_000, 100_000, skip_ahead_turns=skip_ahead_turns, overtakes_max=2)
    async with running_cell(limits=limits) as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        de = bench.join(FakeGroup("d0", Role.DECODE, hbm_tokens=200))
        turns = [await _submit(bench, f"{n}", "", tokens=size) for n, size in enumerate((90, 150, 10, 10, 10))]
        await bench.fetch(pe)
        await bench.fetch(de)
        waiting = bench.cell.core.ledger.group_queues[GroupId("d0")].waiting()

    assert [turn.state is TurnState.PLANNED for turn in turns].count(True) == planned
    assert turns[1].state is TurnState.GROUP_QUEUE
    assert waiting[0].overtaken == planned - 1  # then nobody goes before it any more


async def _next(bench: Bench, pe: FakeGroup) -> TurnEntry:
    await bench.fetch(pe)
    (entry,) = [e for e in bench.cell.core.ledger.open_turns() if e.pe is not None]
    return entry


async def _end(bench: Bench, entry: TurnEntry) -> None:
    bench.cell.settle.cancel(entry.turn.turn_id)
    await bench.settled()
