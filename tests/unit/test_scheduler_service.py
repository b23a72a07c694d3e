"""The service on the memory store: intake's answers, dispatch's order, how attempts end, what a restart keeps."""

import asyncio

import pytest

from cell_support import CountingIds, FakeGroup, ManualClock, committed, running_cell, submission
from dualpath.model.errors import Refused, Rejected
from dualpath.model.ids import BlockKey, GroupId
from dualpath.model.turn import EndReason, ReadSide, Role, TurnResult, TurnState
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.core import Core
from dualpath.scheduler.service.messages import AttemptKey, SendCancel, SendCommitAck, SendStale
from dualpath.scheduler.stores.memory import MemoryStore

KEYS = tuple(BlockKey(bytes([n]) * 32) for n in range(1, 4))


def _pair() -> tuple[FakeGroup, FakeGroup]:
    return FakeGroup("p0", Role.PREFILL), FakeGroup("d0", Role.DECODE)


async def test_a_turn_is_planned_only_after_both_groups_fetched() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(de)
        before = entry.state

        await bench.fetch(pe)

        assert [before, entry.state] == [TurnState.PREFILL_FIFO, TurnState.PLANNED]
        assert pe.plans == de.plans
        assert pe.plans[0].attempt == 1


async def test_an_open_fetch_is_served_when_a_turn_arrives() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        await bench.fetch(pe)
        await bench.fetch(de)

        await bench.cell.intake.submit(submission("a"))
        await bench.settled()

        assert len(pe.plans) == 1


async def test_nothing_goes_to_an_engine_over_beta_and_the_rest_keep_their_place() -> None:
    async with running_cell(limits=PolicyLimits(alpha_tokens=1000, beta_tokens=50)) as bench:
        pe, _ = (bench.join(group) for group in _pair())
        for key in "abc":
            await bench.cell.intake.submit(submission(key, tokens=40))
        await bench.fetch(pe)

        line = list(bench.cell.core.ledger.prefill_fifo)
        assert line == ["t3"]
        assert bench.cell.standing(bench.cell.find(turn_id="t3")).place == 1
        assert "more open tokens than beta" in bench.cell.standing(bench.cell.find(turn_id="t3")).waits_for


async def test_the_same_key_gives_the_same_turn_and_other_content_is_rejected() -> None:
    async with running_cell() as bench:
        first = await bench.cell.intake.submit(submission("a"))
        again = await bench.cell.intake.submit(submission("a"))
        with pytest.raises(Rejected, match="idempotency_key names turn t1"):
            await bench.cell.intake.submit(submission("a", new=9))

    assert first is again


async def test_beyond_the_waiting_bound_turns_are_refused_with_both_numbers() -> None:
    async with running_cell(bounds=ServiceBounds(waiting_turns_max=2)) as bench:
        await bench.cell.intake.submit(submission("a"))
        await bench.cell.intake.submit(submission("b"))
        with pytest.raises(Refused, match="2 turns wait, the bound is 2") as caught:
            await bench.cell.intake.submit(submission("c"))

    assert caught.value.retry_after_s > 0


async def test_a_commit_teaches_the_context_that_the_next_turn_continues() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a", tokens=130))
        await bench.fetch(pe)
        await bench.fetch(de)
        bench.cell.settle.commit(GroupId("d0"), Core.key(entry), committed(), KEYS[:2])
        await bench.settled()
        following = await bench.cell.intake.submit(submission("b", context=(KEYS[1], 128)))
        with pytest.raises(Rejected, match="the context of this key has 128"):
            await bench.cell.intake.submit(submission("c", context=(KEYS[1], 64)))

    assert following.turn.hit_keys == KEYS[:2]
    assert following.turn.hit_tokens == 128


async def test_lost_context_is_forgotten_from_the_first_bad_block_on() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        ledger = bench.cell.core.ledger
        ledger.contexts.extend((), KEYS, 64)
        entry = await bench.cell.intake.submit(submission("a", context=(KEYS[2], 192)))
        await bench.fetch(pe)
        await bench.fetch(de)
        lost = TurnResult((), EndReason.CONTEXT_LOST, valid_context_tokens=64)
        bench.cell.settle.commit(GroupId("d0"), Core.key(entry), lost, ())
        await bench.settled()

    assert entry.state is TurnState.FAILED
    assert [ledger.contexts.tokens_at(key) for key in KEYS] == [64, None, None]


async def test_a_stale_commit_is_refused_and_a_repeated_one_acknowledged() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        key = Core.key(entry)
        bench.cell.settle.commit(GroupId("d0"), AttemptKey(key.turn_id, 9), committed(), ())
        bench.cell.settle.commit(GroupId("d0"), key, committed(), ())
        bench.cell.settle.commit(GroupId("d0"), key, committed(7), ())
        await bench.settled()

    answers = [type(m) for m in de.told if isinstance(m, SendStale | SendCommitAck)]
    assert answers == [SendStale, SendCommitAck, SendCommitAck]
    assert entry.result == committed()
    assert bench.cell.core.ledger.counts.stale_commits == 1


async def test_a_handback_sends_the_turn_to_its_old_place_and_cancels_the_other_side() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        first = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        await bench.cell.intake.submit(submission("b"))
        bench.cell.settle.handback(GroupId("p0"), Core.key(first), "refused", "full")
        await bench.settled()

        assert list(bench.cell.core.ledger.prefill_fifo) == ["t1", "t2"]
        assert first.attempt == 2
        assert any(isinstance(message, SendCancel) for message in de.told)


async def test_a_turn_that_kills_every_attempt_ends_as_poison() -> None:
    async with running_cell(bounds=ServiceBounds(attempts_max=3)) as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        for _ in range(3):
            await bench.fetch(pe)
            await bench.fetch(de)
            bench.cell.settle.handback(GroupId("p0"), Core.key(entry), "engine_failed", "boom")
            await bench.settled()

    assert entry.result is not None
    assert entry.result.end_reason is EndReason.POISON
    assert "3 attempts were lost" in entry.result.message


async def test_a_group_that_loses_its_lease_loses_its_turns_and_its_queue() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        running = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        bench.clock.now_s += 10
        bench.cell.leases.heard(GroupId("p0"))
        bench.cell.leases.sweep()
        await bench.settled()

        assert running.attempt == 2
        assert (pe.closed, de.closed) == (0, 1)  # it must say Hello again, should it only have slept
        assert GroupId("d0") not in bench.cell.core.ledger.groups
        assert not bench.cell.core.ledger.records


async def test_a_deadline_that_passes_in_the_queue_is_never_assigned() -> None:
    async with running_cell() as bench:
        pe, _ = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a", deadline_s=1.0))
        bench.clock.now_s += 1.5
        bench.cell.settle.sweep()
        await bench.fetch(pe)

    assert entry.result is not None
    assert entry.result.end_reason is EndReason.DEADLINE
    assert entry.pe is None


async def test_a_deadline_that_passes_between_two_sweeps_is_seen_before_the_turn_is_placed() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        waits = await bench.cell.intake.submit(submission("a", deadline_s=1.0))
        has_pe = await bench.cell.intake.submit(submission("b", deadline_s=2.0))
        bench.clock.now_s += 1.5
        await bench.fetch(pe)
        bench.clock.now_s += 1.0
        await bench.fetch(de)

    assert [entry.result and entry.result.end_reason for entry in (waits, has_pe)] == [EndReason.DEADLINE] * 2
    assert (waits.pe, de.plans) == (None, [])


async def test_a_restarted_scheduler_goes_on_with_what_agents_still_run() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        key = Core.key(entry)
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        pe.told.clear()
        bench.join(pe)
        bench.join(de, key)
        await bench.settled()
        bench.cell.settle.commit(GroupId("d0"), key, committed(), ())
        await bench.settled()
        again = bench.cell.find(idempotency_key="a")

    assert [plan.attempt for plan in pe.plans] == [1]  # the PE had lost it: the plan came again
    assert again.state is TurnState.COMMITTED


async def test_a_plan_that_is_owed_is_told_after_the_write_too() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        bench.cell.leases.report(de.report(), fetch=True)
        bench.cell.dispatch.pump()
        bench.join(pe)
        before = len(pe.plans)
        await bench.settled()

    assert [before, len(pe.plans)] == [0, 2]


async def test_a_commit_takes_the_plan_back_from_a_pe_that_got_it_again() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        key = Core.key(entry)
        bench.join(pe)  # its Hello names no attempt: it was done, or has lost it
        await bench.settled()
        bench.cell.settle.commit(GroupId("d0"), key, committed(), ())
        await bench.settled()

    assert pe.told[-1] == SendCancel(key, "committed")


async def test_a_pe_that_comes_back_with_a_committed_attempt_is_told_to_drop_it_and_its_de_is_not() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        entry = await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
        key = Core.key(entry)
        bench.cell.settle.commit(GroupId("d0"), key, committed(), ())
        await bench.settled()
        for group in (pe, de):
            group.told.clear()
            bench.join(group, key)

    assert [len(pe.told), len(de.told)] == [1, 0]
    assert isinstance(pe.told[0], SendCancel)


async def test_agents_that_do_not_come_back_lose_their_turns_after_one_lease() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        pe, de = (bench.join(group) for group in _pair())
        await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        await bench.fetch(de)
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        clock.now_s += 2
        bench.cell.leases.sweep()
        assert bench.cell.find(turn_id="t1").attempt == 1
        clock.now_s += 2
        bench.cell.leases.sweep()
        await bench.settled()

        assert bench.cell.find(turn_id="t1").attempt == 2
        assert list(bench.cell.core.ledger.prefill_fifo) == ["t1"]


async def test_a_turn_whose_group_has_gone_is_found_in_the_global_queue_after_a_restart() -> None:
    clock = ManualClock()
    store, ids = MemoryStore(clock), CountingIds()
    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        pe, _ = (bench.join(group) for group in _pair())
        await bench.cell.intake.submit(submission("a"))
        await bench.fetch(pe)
        before = bench.cell.find(turn_id="t1").state
        bench.cell.leases.draining(GroupId("d0"), 1)
        await bench.settled()

    async with running_cell(store=store, clock=clock, ids=ids) as bench:
        after = bench.cell.find(turn_id="t1").state

    assert [before, after] == [TurnState.GROUP_QUEUE, TurnState.DECODE_QUEUE]


async def test_the_policy_changes_only_in_an_idle_cell() -> None:
    from dualpath.scheduler.policy.registry import policy_named

    async with running_cell(policy="basic") as bench:
        bench.cell.set_policy(policy_named("dualpath"))
        await bench.cell.intake.submit(submission("a"))
        with pytest.raises(Rejected, match="1 turns wait or run, wanted none"):
            bench.cell.set_policy(policy_named("basic"))


async def test_reads_go_to_the_node_with_the_shorter_queue() -> None:
    async with running_cell() as bench:
        pe, de = (bench.join(group) for group in _pair())
        bench.cell.core.ledger.contexts.extend((), KEYS, 64)
        for key in ("a", "b", "c", "d"):
            await bench.cell.intake.submit(submission(key, context=(KEYS[2], 192)))
        await bench.fetch(pe)
        await bench.fetch(de)

    sides = [plan.read_side for plan in pe.plans]
    assert sorted(sides) == [ReadSide.DE, ReadSide.DE, ReadSide.PE, ReadSide.PE]


@pytest.mark.parametrize("groups", [3, 6])
async def test_idle_groups_take_turns(groups: int) -> None:
    async with running_cell() as bench:
        pe = bench.join(FakeGroup("p0", Role.PREFILL))
        decoders = [bench.join(FakeGroup(f"d{n}", Role.DECODE)) for n in range(groups)]
        for number in range(4 * groups):
            entry = await bench.cell.intake.submit(submission(f"k{number}"))
            await bench.fetch(pe)
            for group in decoders:
                await bench.fetch(group)
            assert entry.de is not None
            bench.cell.settle.commit(entry.de.group_id, Core.key(entry), committed(), ())
            await bench.settled()

    assert [len(group.plans) for group in decoders] == [4] * groups


async def test_a_turn_is_known_to_be_stored_although_others_never_stop_coming() -> None:
    async with running_cell() as bench:
        busy = asyncio.Event()

        async def others() -> None:
            for n in range(100_000):
                bench.cell.intake.accept(submission(f"other{n}"), lambda _: busy.set())
                await asyncio.sleep(0)

        load = asyncio.create_task(others())
        await busy.wait()
        entry = await bench.cell.intake.submit(submission("a"))
        bench.cell.settle.cancel(entry.turn.turn_id)
        before = entry.is_stored_whole
        asked = asyncio.create_task(bench.cell.core.journal.stored(entry.turn.turn_id))
        await asyncio.wait_for(asked, 20.0)
        load.cancel()

    assert (before, entry.is_stored_whole) == (False, True)
