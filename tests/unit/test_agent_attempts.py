"""Attempts, meetings and persisting on a node: started once, told again, never left hanging."""

import asyncio
from dataclasses import replace

import pytest

from dualpath.engine_agent.plan.notes import (
    AbortReason,
    AttemptKey,
    HandbackNote,
    HandbackReason,
    Note,
    Offer,
    PeerAbort,
    PrefillDone,
    ProgressNote,
)
from dualpath.engine_agent.traffic.attempts import Attempts
from dualpath.engine_agent.traffic.generation import BlockChain, Generation, GenerationBook
from dualpath.engine_agent.traffic.persist import Persister, TurnPersist
from dualpath.engine_agent.traffic.rendezvous import Rendezvous
from dualpath.model.errors import Refused
from dualpath.model.ids import EngineId, GroupId, NodeId, SessionId, TurnId
from dualpath.model.keys import chain_keys, namespace_for
from dualpath.model.layout import BlockLayout
from dualpath.model.turn import EndReason, Pair, Plan, ReadSide, Turn, TurnState
from dualpath.storage_shim.backends.memory import MemoryBackend
from dualpath.storage_shim.wrappers.faulty import Fault, FaultyBackend
from dualpath.storage_shim.writer import BlockWriter

LAYOUT = BlockLayout(num_layers=1, block_tokens=4, bytes_per_token_layer=2)
SPACE = namespace_for("tiny", "r1", "float32", LAYOUT)
KEY = AttemptKey(TurnId("t1"), 1)


def _turn(tokens: int = 10, new: int = 4, **more: object) -> Turn:
    turn = Turn(TurnId("t1"), SessionId("s"), 1, tuple(range(tokens)), new)
    return replace(turn, **more)  # type: ignore[arg-type]


def _plan(assignment: int = 3) -> Plan:
    pair = Pair(EngineId("p/g0"), NodeId("p"), GroupId("P"), EngineId("d/g0"), NodeId("d"), GroupId("D"))
    return Plan(_turn(), 1, 1, assignment, pair, ReadSide.PE, "", "")


class _Link:
    def __init__(self) -> None:
        self.said: list[object] = []

    def offer(self, offer: Offer) -> None:
        self.said.append(offer)

    def abort(self, abort: PeerAbort) -> None:
        self.said.append(abort)


async def test_a_plan_that_runs_already_is_ignored() -> None:
    gate, told = asyncio.Event(), list[Note]()

    async def run(key: AttemptKey, plan: Plan) -> Note | None:
        await gate.wait()
        return None

    attempts = Attempts(run, tell=told.append)

    assert [attempts.start(KEY, _plan()), attempts.start(KEY, _plan(4))] == [True, False]
    assert attempts.seen == 4
    gate.set()
    await attempts.cancel_all()
    assert told == []


async def test_an_attempt_that_is_cancelled_with_its_plan_gives_everything_back() -> None:
    given_back = list[AttemptKey]()

    async def run(key: AttemptKey, plan: Plan) -> Note | None:
        try:
            await asyncio.Event().wait()
        finally:
            given_back.append(key)
        return None

    attempts = Attempts(run, tell=lambda note: None)
    attempts.start(KEY, _plan())
    attempts.cancel(KEY)
    attempts.cancel(KEY)
    await attempts.cancel_all()

    assert given_back == [KEY]
    assert [len(attempts), list(attempts.plans()), attempts.has_ended(KEY)] == [0, [], True]


async def test_the_outcome_of_an_ended_attempt_is_told_again() -> None:
    told = list[Note]()
    outcome = ProgressNote(KEY, TurnState.PREFILLING, prefill_done=True)

    async def run(key: AttemptKey, plan: Plan) -> Note | None:
        return outcome

    attempts = Attempts(run, tell=told.append)
    attempts.start(KEY, _plan())
    await asyncio.sleep(0.01)

    assert not attempts.start(KEY, _plan())
    assert told == [outcome, outcome]


async def test_an_attempt_that_breaks_is_handed_back_and_the_node_goes_on() -> None:
    told = list[Note]()

    async def run(key: AttemptKey, plan: Plan) -> Note | None:
        raise ZeroDivisionError("law")

    attempts = Attempts(run, tell=told.append)
    attempts.start(KEY, _plan())
    await asyncio.sleep(0.01)

    assert len(attempts) == 0
    assert told == [HandbackNote(KEY, HandbackReason.ENGINE_FAILED, "ZeroDivisionError: law")]


async def test_plan_and_want_may_come_in_any_order() -> None:
    meetings, link = Rendezvous(), _Link()
    waiting = asyncio.create_task(meetings.wanted(KEY))
    await asyncio.sleep(0)
    meetings.want(KEY, link)

    assert await waiting is link
    assert await meetings.wanted(KEY) is link


async def test_a_lost_link_ends_every_attempt_that_met_it() -> None:
    meetings, link = Rendezvous(), _Link()
    meetings.want(KEY, link)
    waiting = asyncio.create_task(meetings.outcome(KEY))
    await asyncio.sleep(0)
    meetings.link_lost(link, "gone")

    with pytest.raises(Refused, match="PE node lost: gone"):
        await waiting


async def test_the_first_outcome_counts() -> None:
    meetings = Rendezvous()
    meetings.prefill_done(PrefillDone(KEY, 7, 0))
    meetings.peer_abort(PeerAbort(KEY, AbortReason.CANCELLED))

    assert await meetings.outcome(KEY) == PrefillDone(KEY, 7, 0)


async def test_an_abort_before_the_want_ends_the_wait() -> None:
    meetings = Rendezvous()
    meetings.peer_abort(PeerAbort(KEY, AbortReason.FAILED, "boom"))

    with pytest.raises(Refused, match="gave up before it asked"):
        await meetings.wanted(KEY)


@pytest.mark.parametrize(
    ("forced", "tokens", "reason"),
    [(False, [5, 9], EndReason.STOP_TOKEN), (True, [5, 9, 1, 2], EndReason.LENGTH)],
)
def test_a_generation_ends_at_a_stop_token_unless_forced(forced: bool, tokens: list[int], reason: EndReason) -> None:
    generation = Generation(_turn(forced_tokens=forced, stop_tokens=(9,)))
    for token in (5, 9, 1, 2):
        if generation.end_reason is None:
            generation.add(token)

    assert (generation.tokens, generation.end_reason) == (tokens, reason)


async def test_a_follower_gets_every_token_once_from_its_offset_on() -> None:
    book = GenerationBook(retained_max=1)
    generation = book.open(KEY, _turn())
    generation.add(1)
    got: list[int] = []

    async def follow() -> None:
        async for _, chunk in generation.follow(0):
            got.extend(chunk)

    task = asyncio.create_task(follow())
    for token in (2, 3):
        await asyncio.sleep(0)
        generation.add(token)
    generation.close()
    await task

    assert got == [1, 2, 3]


def test_blocks_of_a_chain_run_over_prompt_and_generation() -> None:
    turn = _turn(tokens=6, new=6)
    generation = Generation(turn)
    chain = BlockChain(turn, generation, namespace=SPACE, block_tokens=4)
    for token in (90, 91):
        generation.add(token)

    keys = [chain.extend()[0], chain.extend()[0]]

    assert tuple(keys) == chain_keys(SPACE, [0, 1, 2, 3, 4, 5, 90, 91], block_tokens=4)


async def test_a_full_disk_ends_the_context_at_the_last_whole_block_and_not_the_turn() -> None:
    writer = BlockWriter(FaultyBackend(MemoryBackend(SPACE, LAYOUT), writes={1: Fault.FULL}), threads=1)
    turn = _turn(tokens=12)
    chain = BlockChain(turn, Generation(turn), namespace=SPACE, block_tokens=4)

    async def copy(key: AttemptKey, index: int, into: memoryview) -> None:
        into[:] = bytes([index] * len(into))

    persist = TurnPersist(KEY, chain, Persister(writer, LAYOUT, asyncio.Semaphore(8)), copy)
    persist.advance(12)

    assert await persist.settle() == 1
    assert len(chain.keys) == 3
    writer.close()
