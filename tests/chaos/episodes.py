"""`make chaos`: two schedulers, Redis with Sentinels and six agents under seeded faults, judged from the outside.

Each round has every fault once, in a random order that the seed fixes; after each, the cell must recover. A part of the
processes has a wall clock that is wrong by an hour all the time. At the end comes what Redis itself loses answers in.
An independent checker then reads the histories of the clients and a recount of the keys in Redis. Progress goes to
stderr, one JSON line per property to stdout; the exit status is 1 where one failed.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis.asyncio as redis

from dualpath.client import Client
from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.engines.emulated import EmulatedEngine
from dualpath.model.errors import DualPathError
from dualpath.v1 import admin_pb2, agents_pb2

from . import network
from .checker import judge
from .cluster import FAKETIME, Cluster, SmallDisk, no_small_disk
from .faults import CLOCK, DISK, FAULTS, LOSSY, NETWORK, Fault, Scene
from .history import History, read
from .idle import wait_until_idle
from .load import Habits, Load
from .recount import recount
from .report import Report
from .stack import CELL, ENGINE_OPTIONS, Shape
from .supervisor import Supervisor

LEASE_S = 2.0
DISK_FULL_SAID = "Can't recover from AOF write error"  # a Redis that syncs always ends where its disk is full
ATTEMPTS_MAX = 100  # a turn may meet many faults
DISK_MIB = 192
BETWEEN_S = (0.5, 1.5)  # faults
RECOVERS_S = 30.0
IDLE_S, SETTLE_S = 60.0, 120.0
LOOK_S, BEAT_S, STALL_TOLD_S = 0.02, 0.05, 0.1
STATUS_S = 0.5
HABITS = Habits(programs=8, think_s=(0.1, 0.8), pause_s=(0.1, 0.5), new=(8, 48))
PROXIED_PROGRAMS = 3


@dataclass(frozen=True, slots=True)
class Missing:
    """Why some means are not there; empty: they are."""

    reasons: dict[str, str]

    def why(self, need: str) -> str:
        return self.reasons.get(need, "")


def look_for_means() -> Missing:
    no_clock = "" if FAKETIME.exists() else f"libfaketime is not at {FAKETIME} (Debian: apt install libfaketime)"
    return Missing({NETWORK: network.why_not(), DISK: no_small_disk(), CLOCK: no_clock})


class Chaos:
    """Use `run`."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        only = f" --only '{options.only}'" if options.only else ""
        again = f'make chaos SEED={options.seed} ARGS="--seconds {options.seconds:g}{only}"'
        self.report = Report("chaos", options.seed, again)
        self.done: Counter[str] = Counter()
        self._missing = look_for_means()
        self._chance = random.Random(f"{options.seed} faults")
        self._history = History(folder / "history" / "chaos.jsonl", "chaos")
        self._loads: list[Load] = []

    async def run(self) -> dict[str, Any]:
        shape = Shape(
            lease_s=LEASE_S,
            store_lease_s=LEASE_S,
            scheduler_flags=("--attempts-max", str(ATTEMPTS_MAX)),
            engine_options={**ENGINE_OPTIONS, "decode_s_per_step": 0.01},
        )
        async with AsyncExitStack() as closing:
            net = None if self._missing.why(NETWORK) else closing.enter_context(network.Network())
            disk, disk_folder = None, self.folder / "disk"
            if not self._missing.why(DISK):
                disk = closing.enter_context(SmallDisk(disk_folder, mib=DISK_MIB))
            cluster = await closing.enter_async_context(Cluster(self.folder, shape, net, disk=disk_folder))
            self.report.say(f"{len(cluster.processes)} processes are up")
            supervisor = Supervisor([*cluster.processes.values()], self._history, may_end=DISK_FULL_SAID)
            scene = Scene(cluster, supervisor, self._history, self._chance, disk)
            self._loads = [
                self._load(cluster.addresses, "direct", HABITS.programs),
                self._load(cluster.proxied, "proxied", PROXIED_PROGRAMS),
            ]
            beside = [
                supervisor.watch(),
                self._watch_leader(cluster),
                self._watch_stalls(),
                self._watch_status(cluster),
            ]
            watching = [asyncio.create_task(work) for work in beside]
            running = [asyncio.create_task(load.run()) for load in self._loads]
            try:
                await self._episodes(scene)
                await self._end_load(running)
                await self._judge(cluster, supervisor)
            finally:
                for task in (*running, *watching):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
        ends: Counter[str] = Counter()
        for load in self._loads:
            ends += load.ends
        return {"seed": self.options.seed, "faults": dict(self.done), "turns": sum(ends.values()), "ends": dict(ends)}

    def _load(self, addresses: str, name: str, programs: int) -> Load:
        habits = Habits(programs, HABITS.turns, HABITS.append, HABITS.new, HABITS.think_s, HABITS.pause_s)
        return Load(
            addresses,
            habits=habits,
            seed=self.options.seed,
            history=History(self.folder / "history" / f"{name}.jsonl", name),
            engine=cast(EmulatedEngine, build_engine(EngineSpec("emulated", ENGINE_OPTIONS))),
            name=name,
        )

    # the faults

    async def _episodes(self, scene: Scene) -> None:
        possible = [fault for fault in FAULTS if not self._missing.why(fault.needs)]
        for fault in FAULTS:
            if why := self._missing.why(fault.needs):
                self.report.not_run(f"fault: {fault.name}", why)
        if wanted := self.options.only:
            possible = [fault for fault in (*possible, *LOSSY) if wanted in fault.name]
        ends_at_s = time.monotonic() + self.options.seconds
        await self._recovered(scene, "the start", time.monotonic())
        while time.monotonic() < ends_at_s:
            for fault in self._chance.sample(possible, len(possible)):
                if time.monotonic() >= ends_at_s:
                    break
                await self._episode(scene, fault)
        if not self.options.only:
            for fault in LOSSY:
                await self._episode(scene, fault)

    async def _episode(self, scene: Scene, fault: Fault) -> None:
        await asyncio.sleep(self._chance.uniform(*BETWEEN_S))
        self.report.say(f"{time.monotonic():9.1f}  {fault.name}  ({sum(load.turns for load in self._loads)} turns)")
        self._history.add("episode", name=fault.name)
        try:
            await fault.act(scene)
        except (TimeoutError, OSError, redis.RedisError) as error:
            self.report.of("R9_sentinels_agree_before_each_fault").trial(f"{fault.name}: {error!r}")
        self.done[fault.name] += 1
        await self._recovered(scene, fault.name, time.monotonic())

    async def _recovered(self, scene: Scene, after: str, since_s: float) -> None:
        """All processes are there, Redis is whole, somebody leads, and new answers come."""
        recovers = self.report.of("cell_recovers_after_each_fault")
        try:
            async with asyncio.timeout(RECOVERS_S):
                while not all([await p.serves() for p in scene.cluster.processes.values()]):  # noqa: ASYNC110
                    await asyncio.sleep(BEAT_S)
                await scene.cluster.replicated()
                while scene.cluster.leader() is None:  # noqa: ASYNC110
                    await asyncio.sleep(BEAT_S)
                turns = [load.turns for load in self._loads]
                while any(load.turns == before for load, before in zip(self._loads, turns, strict=True)):  # noqa: ASYNC110
                    await asyncio.sleep(BEAT_S)
        except TimeoutError:
            leader = scene.cluster.leader()
            down = [name for name, process in scene.cluster.processes.items() if not process.is_alive]
            recovers.trial(f"not in {RECOVERS_S:g} s after {after}: leader {leader and leader.name}, down {down}")
        else:
            recovers.trial(value=time.monotonic() - since_s)
        self._history.add("recovered", after=after)

    async def _watch_leader(self, cluster: Cluster) -> None:
        epoch = 0
        while True:
            if (now := cluster.epoch()) > epoch:
                epoch, leader = now, cluster.leader()
                self._history.add("leads", epoch=epoch, who=leader.name if leader else "")
            await asyncio.sleep(LOOK_S)

    async def _watch_stalls(self) -> None:
        """How long this process was kept from running beyond what it asked for: the others were as well."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(BEAT_S)
            late_s = time.monotonic() - before_s - BEAT_S
            if late_s > STALL_TOLD_S:
                self._history.add("stall", s=round(late_s, 3))

    async def _end_load(self, running: Sequence["asyncio.Task[None]"]) -> None:
        for load in self._loads:
            load.stop()
        await asyncio.wait(running, timeout=SETTLE_S)
        load_works = self.report.of("R1_clients_are_served")
        for load, task in zip(self._loads, running, strict=True):
            load_works.trials_of(load.turns, load.failures)
            if not task.done():
                load_works.trial(f"the load did not end within {SETTLE_S:g} s")
            elif error := task.exception():
                load_works.trial(f"the load failed: {error!r}")

    # the judgement

    async def _judge(self, cluster: Cluster, supervisor: Supervisor) -> None:
        found = await wait_until_idle(cluster.addresses, groups=len(cluster.agents), timeout_s=IDLE_S)
        self.report.of("R4_R5_engines_and_buffers_are_empty_at_the_end").trials_of(1 + len(cluster.agents), found)
        host, port = cluster.redis_at[(await cluster.primary()).name]
        async with redis.Redis(host=host, port=port) as store:
            counted = await recount(store, CELL)
        judge(self.report, read((self.folder / "history").glob("*.jsonl")), counted)
        died = self.report.of("nothing_dies_that_was_not_killed")
        died.trials_of(sum(self.done.values()), supervisor.crashes)
        if why := self._missing.why(CLOCK):
            self.report.not_run("R15_no_deadline_comes_early", why)

    async def _watch_status(self, cluster: Cluster) -> None:
        """Laws I1 and I2 while all goes on; whoever cannot be reached is asked again later."""
        sums, bounds = self.report.of("I1_accepted_turns_add_up"), self.report.of("R5_hbm_and_buffers_stay_in_bounds")
        async with Client(cluster.addresses) as client:
            while True:
                await asyncio.sleep(STATUS_S)
                with suppress(DualPathError):
                    status = await client.status()
                    parts = status.committed + status.failed + status.cancelled + status.waiting + status.running
                    wrong = f"{status.accepted} accepted, parts add up to {parts}" if parts != status.accepted else ""
                    sums.trial(wrong)
                    bounds.trials_of(1, _out_of_bounds(status))


def _out_of_bounds(status: admin_pb2.CellStatus) -> list[str]:
    decoders = [engine for g in status.groups if g.role == agents_pb2.ROLE_DECODE for engine in g.engines]
    nodes = [(n.info.node_id, n.load.buffer_used_bytes, n.info.buffer_bytes) for g in status.groups for n in g.nodes]
    hbm = [(engine.engine_id, engine.open_tokens, engine.hbm_tokens) for engine in decoders]
    return [
        *(f"{name} holds {used} of {size} HBM tokens" for name, used, size in hbm if used > size),
        *(f"{name} uses {used} of {size} buffer bytes" for name, used, size in nodes if used > size),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    names = "\n".join(f"  {fault.name}" + (f"  (needs {fault.needs})" if fault.needs else "") for fault in FAULTS)
    last = "\n".join(f"  {fault.name}" for fault in LOSSY)
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"faults:\n{names}\n\nonce, at the end:\n{last}\n\nWithout root, those that need it are told as not run,"
        " with the reason. The seed fixes the\norder of the faults and their victims, not the instants.",
    )
    parser.add_argument("--seconds", type=float, default=400.0, help="of faults; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults with this in their name")
    parser.add_argument("--out", type=Path, help="also write a summary in numbers to this JSON file")
    parser.add_argument("--folder", type=Path, help="keep data, logs and histories here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dualpath-chaos-", ignore_cleanup_errors=True) as temporary:
        chaos = Chaos(options, options.folder or Path(temporary))
        summary = asyncio.run(chaos.run())
    chaos.report.say(json.dumps(summary))
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1))
    return chaos.report.finish()
