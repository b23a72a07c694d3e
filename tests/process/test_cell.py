"""A whole cell in processes of its own: real sockets, Redis, blocks on disk, a real model; and what hurts it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict

from dualpath.cli.cell_config import load_config
from dualpath.cli.local_cell import LocalCell
from dualpath.cli.replay import ReplayRun, replay
from dualpath.client import Client, Session, TurnSpec
from dualpath.client.traces import TraceSession, TraceTurn
from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.model.errors import Rejected
from dualpath.model.ids import BlockKey
from dualpath.model.turn import EndReason, ReadSide
from dualpath.v1 import agents_pb2, agents_pb2_grpc, turns_pb2, turns_pb2_grpc
from support import wait_until

VOCAB_SIZE = 2048
WAIT_S = 40.0
# small and slow enough that a turn can be caught while it reads
SLOW = {"snic_mb_per_s": 3.0, "alpha_tokens": 4000, "beta_tokens": 100_000, "lease_s": 1.0}


def _config(folder: Path, **fields: object) -> LocalCell:
    return LocalCell(load_config(None, address="127.0.0.1:0", data=folder, **fields))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_cell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCell]:
    async with _config(tmp_path_factory.mktemp("cell"), shape="1P2D", lease_s=2.0) as cell:
        yield cell


def _sessions(count: int, turns: int) -> tuple[TraceSession, ...]:
    return tuple(
        TraceSession(f"s{n}", (TraceTurn(400 + 16 * n, 6), *(TraceTurn(40, 6) for _ in range(turns - 1))))
        for n in range(count)
    )


def _all_equal(run: ReplayRun) -> bool:
    engine = build_engine(EngineSpec("reference", {}))
    return all(engine.verify(turn.prompt, turn.generated).equal for turn in run.turns)


@pytest.mark.asyncio(loop_scope="module")
async def test_tokens_of_both_paths_equal_a_full_recompute(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        run = await replay(client, _sessions(4, 5), seed=1, vocab_size=VOCAB_SIZE, keep_tokens=True)

    sides = {turn.read_side for turn in run.turns if turn.hit_tokens}
    assert sides == {ReadSide.PE, ReadSide.DE}
    assert len(run.turns) == 20
    assert _all_equal(run)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_context_that_fills_its_last_block_is_hit_whole(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        session = Session(client)
        first = await session.turn(range(120), max_new_tokens=8, forced_tokens=True)  # 128 tokens = 2 blocks
        second = await session.turn([7], max_new_tokens=2, forced_tokens=True)

    assert first.context_tokens == 128
    assert (second.hit_tokens, second.miss_tokens) == (128, 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_whole_prompt_without_a_context_hits_the_longest_stored_prefix(shared_cell: LocalCell) -> None:
    prompt = tuple(range(300, 500))
    async with Client(shared_cell.address) as client:
        first = await (await client.submit(TurnSpec(prompt, 4, forced_tokens=True))).result()
        again = await (await client.submit(TurnSpec((*prompt, 9), 4, forced_tokens=True))).result()

    assert first.hit_tokens == 0
    assert again.hit_tokens == 192


@pytest.mark.asyncio(loop_scope="module")
async def test_live_tokens_are_the_tokens_of_the_result(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        handle = await client.submit(TurnSpec(tuple(range(90)), 24, forced_tokens=True))
        live = [token async for chunk in client.tokens(handle) for token in chunk]
        result = await handle.result()

    assert tuple(live) == result.tokens


@pytest.mark.asyncio(loop_scope="module")
async def test_one_idempotency_key_names_one_turn(shared_cell: LocalCell) -> None:
    spec = TurnSpec(tuple(range(80)), 4, forced_tokens=True)
    async with Client(shared_cell.address) as one, Client(shared_cell.address) as other:
        first = await one.submit(spec, idempotency_key="same")
        second = await other.submit(spec, idempotency_key="same")
        results = await asyncio.gather(first.result(), second.result())
        with pytest.raises(Rejected, match="idempotency_key names turn"):
            await (await one.submit(TurnSpec((1, 2), 4), idempotency_key="same")).result()

    assert first.turn_id == second.turn_id
    assert results[0] == results[1]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        (TurnSpec((), 4), "INVALID", "tokens is empty"),
        (TurnSpec((1,), 0), "INVALID", "max_new_tokens is 0, wanted 1"),
        (TurnSpec((1,), 300_000), "TOO_LONG", "the model takes 32768"),
        (
            TurnSpec((1,), 4, context_key=BlockKey(b"x" * 32), context_tokens=64),
            "CONTEXT_UNKNOWN",
            "no committed context",
        ),
        (
            TurnSpec((1,), 4, context_key=BlockKey(b"short"), context_tokens=64),
            "INVALID",
            "context_key has 5 bytes, wanted 32",
        ),
    ],
)
async def test_a_bad_turn_is_rejected_with_what_was_found_and_wanted(
    shared_cell: LocalCell, spec: TurnSpec, reason: str, says: str
) -> None:
    async with Client(shared_cell.address) as client:
        with pytest.raises(Rejected, match=says) as caught:
            await (await client.submit(spec)).result()

    assert caught.value.reason == reason


@pytest.mark.asyncio(loop_scope="module")
async def test_a_token_outside_the_vocabulary_ends_its_turn_and_nothing_else(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        bad = await client.submit(TurnSpec((VOCAB_SIZE + 5,), 4))
        good = await client.submit(TurnSpec((5,), 4, forced_tokens=True))
        ended, fine = await asyncio.gather(bad.result(), good.result())

    assert ended.end_reason is EndReason.INVALID
    assert "outside the vocabulary of 2048" in ended.message
    assert len(fine.tokens) == 4


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocol_version": 9}, "protocol_version is 9, wanted 1"),
        ({"cell": "elsewhere"}, "cell is 'elsewhere', wanted 'default'"),
        ({"layout_hash": "0123"}, "layout_hash is 0123, the cell has"),
        ({"model_revision": "other"}, "model_revision is other, the cell has"),
        ({"agent_epoch": 0}, "epoch 0, wanted"),
        ({"nodes": []}, "nodes 0 given"),
    ],
)
async def test_a_group_that_does_not_fit_is_refused_with_both_sides_named(
    shared_cell: LocalCell, change: dict[str, object], says: str
) -> None:
    engine = build_engine(EngineSpec("reference", {}))
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "cell": "default",
        "group_id": "stranger",
        "role": agents_pb2.ROLE_DECODE,
        "nodes": [agents_pb2.NodeInfo(node_id="x0", address="127.0.0.1:1")],
        "engines": [agents_pb2.EngineCapacity(engine_id="x0/g0", node_id="x0", hbm_tokens=1000)],
        "layout_hash": engine.layout.layout_hash,
        "model_name": engine.model_name,
        "model_revision": engine.model_revision,
        "namespace": f"default/reference/{engine.model_revision}/float32/{engine.layout.layout_hash}",
        "agent_epoch": 7,
        "block_tokens": 64,
        "tokens_max": 100,
    }
    async with grpc.aio.insecure_channel(shared_cell.address) as channel:
        call = agents_pb2_grpc.AgentsStub(channel).Work()
        hello = agents_pb2.FromGroup(hello=agents_pb2.Hello(**(fields | change)))
        await call.write(agents_pb2.FromGroupBatch(frames=[hello]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read() is not grpc.aio.EOF:
                pass

    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert says in str(caught.value.details())


@pytest.mark.asyncio(loop_scope="module")
async def test_cancel_in_the_middle_gives_everything_back(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        handle = await client.submit(TurnSpec(tuple(range(64)), 3000, forced_tokens=True))
        async for event in handle.events():
            if event.first_token:
                await client.cancel(event.turn_id)
        result = await handle.result()
        idle = await _idle_status(client)

    assert result.end_reason is EndReason.CANCELLED
    assert idle


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deadline_ends_a_running_turn(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        handle = await client.submit(TurnSpec(tuple(range(64)), 4000, forced_tokens=True, deadline_s=0.4))
        result = await handle.result()
        idle = await _idle_status(client)

    assert result.end_reason is EndReason.DEADLINE
    assert idle


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_vanishes_loses_nothing(shared_cell: LocalCell) -> None:
    request = turns_pb2.SubmitTurn(idempotency_key="left", tokens=range(70), max_new_tokens=30, forced_tokens=True)
    async with grpc.aio.insecure_channel(shared_cell.address) as channel:
        call = turns_pb2_grpc.TurnsStub(channel).Submit(request)
        await call.read()
        call.cancel()
    async with Client(shared_cell.address) as client:
        spec = TurnSpec(tuple(range(70)), 30, forced_tokens=True)
        result = await (await client.submit(spec, idempotency_key="left")).result()

    assert len(result.tokens) == 30


@pytest.mark.asyncio(loop_scope="module")
async def test_explain_tells_every_decision(shared_cell: LocalCell) -> None:
    async with Client(shared_cell.address) as client:
        handle = await client.submit(TurnSpec(tuple(range(70)), 2))
        await handle.result()
        explanation = await client.explain(handle.turn_id)

    assert [d.step for d in explanation.decisions] == ["accepted", "prefill", "group", "decode", "read_side", "ended"]
    assert all(decision.sentence for decision in explanation.decisions)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_corrupt_block_is_never_used(shared_cell: LocalCell) -> None:
    engine = build_engine(EngineSpec("reference", {}))
    async with Client(shared_cell.address) as client:
        session = Session(client)
        before = set((shared_cell.data / "kv").rglob("*.kv"))
        await session.turn([(7 * n) % 2000 for n in range(250)], max_new_tokens=4, forced_tokens=True)
        new = sorted(set((shared_cell.data / "kv").rglob("*.kv")) - before)
        assert len(new) == 3
        damaged = bytearray(new[0].read_bytes())
        damaged[len(damaged) // 2] ^= 1
        new[0].write_bytes(damaged)
        prompt = [*session.tokens, 42]
        result = await session.turn([42], max_new_tokens=4, forced_tokens=True)

    assert session.resends == 1
    assert engine.verify(prompt, result.tokens).equal


async def test_kill_9_of_the_scheduler_in_a_replay_answers_every_turn_once(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P2D", snic_mb_per_s=4.0, lease_s=3.0) as cell:
        watching = asyncio.create_task(cell.supervisor.watch())
        scheduler = cell.supervisor.children[0]
        async with Client(cell.address) as client:
            done = 0

            def progress(count: int, total: int) -> None:
                nonlocal done
                done = count

            task = asyncio.create_task(
                replay(client, _sessions(6, 5), seed=3, vocab_size=VOCAB_SIZE, keep_tokens=True, progress=progress)
            )
            await wait_until(lambda: done >= 6, timeout_s=WAIT_S)
            scheduler.signal(signal.SIGKILL)
            run = await asyncio.wait_for(task, WAIT_S)
            idle = await _idle_status(client)
        watching.cancel()

    assert scheduler.restarts == 1
    assert [turn.answers for turn in run.turns] == [1] * 30
    assert _all_equal(run)
    assert idle


async def test_kill_9_of_a_decode_agent_moves_its_turns(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P2D", **SLOW) as cell:
        watching = asyncio.create_task(cell.supervisor.watch())
        victim = cell.supervisor.children[2]
        async with Client(cell.address) as client:
            done = 0

            def progress(count: int, total: int) -> None:
                nonlocal done
                done = count

            task = asyncio.create_task(
                replay(client, _sessions(4, 4), seed=4, vocab_size=VOCAB_SIZE, keep_tokens=True, progress=progress)
            )
            await wait_until(lambda: done >= 5, timeout_s=WAIT_S)
            victim.signal(signal.SIGKILL)
            run = await asyncio.wait_for(task, WAIT_S)
            idle = await _idle_status(client)
        watching.cancel()

    assert victim.restarts == 1
    assert [turn.answers for turn in run.turns] == [1] * 16
    assert _all_equal(run)
    assert idle


async def test_a_stopped_agent_is_replaced_and_its_late_commit_refused(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P2D", lease_s=1.0) as cell, Client(cell.address) as client:
        handle = await client.submit(TurnSpec(tuple(range(64)), 1500, forced_tokens=True))
        async for event in handle.events():
            if event.first_token:
                victim = next(c for c in cell.supervisor.children if c.spec.name == event.de.partition("/")[0])
                victim.signal(signal.SIGSTOP)
                break
        result = await asyncio.wait_for(handle.result(), WAIT_S)
        victim.signal(signal.SIGCONT)
        await asyncio.sleep(1.0)  # time for whatever the late agent has to say
        status = await client.status()
        while len(status.groups) < 3:  # it is taken back, under a Hello of its own
            await asyncio.sleep(0.1)
            status = await client.status()

    assert len(result.tokens) == 1500
    assert handle.last_event is not None
    assert handle.last_event.attempt == 2
    assert status.committed == 1


async def test_groups_of_two_nodes_fetch_through_their_leader_and_survive_a_member(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="2P2D", nodes_per_group=2, lease_s=1.0) as cell, Client(cell.address) as client:
        watching = asyncio.create_task(cell.supervisor.watch())
        groups = {group.group_id: len(group.nodes) for group in (await client.status()).groups}
        first = await replay(client, _sessions(6, 4), seed=5, vocab_size=VOCAB_SIZE, keep_tokens=True)
        member = next(child for child in cell.supervisor.children if child.spec.name == "p1")
        task = asyncio.create_task(replay(client, _sessions(6, 4), seed=6, vocab_size=VOCAB_SIZE, keep_tokens=True))
        await asyncio.sleep(0.3)
        member.signal(signal.SIGKILL)
        second = await asyncio.wait_for(task, WAIT_S)
        idle = await _idle_status(client)
        watching.cancel()

    assert groups == {"prefill-0": 2, "decode-0": 2}
    assert {turn.pe for turn in first.turns} == {"p0/g0", "p1/g0"}
    assert {turn.de for turn in first.turns} == {"d0/g0", "d1/g0"}
    assert [turn.answers for turn in second.turns] == [1] * 24
    assert _all_equal(first)
    assert _all_equal(second)
    assert idle


async def test_a_turn_that_no_decode_engine_can_hold_is_rejected_with_the_limit(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P1D", hbm_tokens=500) as cell, Client(cell.address) as client:
        with pytest.raises(Rejected, match="is 601 tokens, the largest decode engine holds 500") as caught:
            await (await client.submit(TurnSpec(tuple(range(600)), 1))).result()
        fits = await (await client.submit(TurnSpec(tuple(range(100)), 3, forced_tokens=True))).result()

    assert caught.value.reason == "EXCEEDS_HBM"
    assert len(fits.tokens) == 3


async def test_stopping_a_cell_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P1D") as cell:
        pids = [child.pid for child in cell.supervisor.children]
        host, _, port = cell.address.rpartition(":")

    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "dualpath.scheduler", "--listen", address, "--data", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 3
    assert f"cannot listen on {address}" in ended.stderr


async def test_an_agent_refuses_storage_of_another_layout(tmp_path: Path) -> None:
    async with _config(tmp_path, shape="1P1D", engine="emulated"):
        pass
    command = [sys.executable, "-m", "dualpath.engine_agent", "--role", "decode", "--node-id", "d0", "--group-id", "d"]
    command += ["--storage", str(tmp_path / "kv"), "--engine", "emulated"]
    options = json.dumps({"bytes_per_token_layer": 1024})
    command += ["--engine-options", options]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 3
    assert "4 layers x 64 tokens x 512 B, this engine has 4 layers x 64 tokens x 1024 B" in ended.stderr


async def _idle_status(client: Client) -> bool:
    """True once the cell holds nothing for anybody: no open turns, no tokens, no HBM, no read queue, no buffer."""
    for _ in range(100):
        status = await client.status()
        engines = [engine for group in status.groups for engine in group.engines]
        nodes = [node.load for group in status.groups for node in group.nodes]
        if (
            status.running + status.waiting == 0
            and all(e.open_tokens == 0 and e.free_hbm_tokens == e.hbm_tokens for e in engines)
            and all(n.read_queue_tokens == 0 and n.buffer_used_bytes == 0 for n in nodes)
        ):
            return True
        await asyncio.sleep(0.1)
    raise AssertionError(f"not idle: {MessageToDict(status)}")
