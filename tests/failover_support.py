"""Two schedulers, a few agents and a client with turns under way, as processes of their own that a test may hurt."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import support
from dualpath.cli.supervisor import Child, ChildSpec
from dualpath.client import Client, TurnHandle, TurnSpec
from dualpath.model.turn import TurnState

WAIT_S = 40.0
NEW_TOKENS = 12
GAP_S = 0.02  # between two submissions
ENGINE = {"decode_s_per_step": 0.004, "prefill_s_per_forward": 0.01}


class Cell:
    """`schedulers` share one Redis; agents and clients know the addresses of all of them."""

    def __init__(self, folder: Path, redis_url: str, *, lease_s: float, flags: dict[str, object] | None = None) -> None:
        self._folder = folder
        self.lease_s = lease_s
        self.addresses = [f"127.0.0.1:{support.find_free_port()}" for _ in range(2)]
        shared = {"redis-url": redis_url, "lease-s": lease_s, "store-lease-s": lease_s, "beta-tokens": 600}
        shared |= flags or {}
        self.schedulers = [
            self._child(f"s{n}", "dualpath.scheduler", shared | {"listen": address})
            for n, address in enumerate(self.addresses)
        ]
        self.agents = [self._agent("prefill", "p0"), self._agent("decode", "d0")]

    async def start(self, *agents: Child) -> None:
        """The schedulers, and these agents or all."""
        chosen = agents or tuple(self.agents)
        for child in (*self.schedulers, *chosen):
            child.start()
        for child in chosen:
            await child.ready()  # known to the active scheduler
        await asyncio.gather(*(self.up(child) for child in self.schedulers))

    async def stop(self) -> None:
        for child in (*self.schedulers, *self.agents):
            child.signal(signal.SIGCONT)
        await asyncio.gather(*(child.stop() for child in self.agents))
        await asyncio.gather(*(child.stop() for child in self.schedulers))

    async def up(self, scheduler: Child) -> None:
        """Wait until the scheduler has said what it is."""
        await support.wait_until(lambda: bool(self.says(scheduler)), timeout_s=WAIT_S, what="scheduler says its role")

    async def restart(self, scheduler: Child) -> None:
        scheduler.spec.log.unlink()
        scheduler.start()
        await self.up(scheduler)

    async def active(self, client: Client) -> tuple[Child, int]:
        """The scheduler that leads, and its epoch."""
        epoch = (await client.status()).scheduler_epoch
        for child in self.schedulers:
            body = json.loads(child.spec.ready_file.read_text()) if child.spec.ready_file.exists() else {}
            if body.get("role") == "active" and body["epoch"] == epoch:
                return child, epoch
        raise AssertionError(f"nobody has epoch {epoch}")

    def says(self, scheduler: Child) -> list[str]:
        """What a scheduler announced since its start."""
        lines = scheduler.spec.log.read_text(errors="replace").splitlines() if scheduler.spec.log.exists() else []
        return [line for line in lines if line.startswith("scheduler ")]

    def _agent(self, role: str, node: str) -> Child:
        flags: dict[str, object] = {
            "role": role,
            "node-id": node,
            "group-id": f"{role}-0",
            "scheduler": ",".join(self.addresses),
            "engine": "emulated",
            "engine-options": json.dumps(ENGINE),
            "storage": self._folder / "kv",
            "data": self._folder / node,
            "buffer-bytes": 1 << 26,
            "hbm-tokens": 20_000,
            "drain-s": 0.2,
        }
        return self._child(node, "dualpath.engine_agent", flags, "--no-durable-storage")

    def _child(self, name: str, module: str, flags: dict[str, object], *more: str) -> Child:
        ready = self._folder / f"{name}.ready"
        flags = flags | {"ready-file": ready}
        arguments = [str(part) for flag, value in flags.items() for part in (f"--{flag}", value)]
        return Child(ChildSpec(name, module, (*arguments, *more), ready, self._folder / f"{name}.log"))


@dataclass
class Load:
    """Turns that never stop coming, `width` under way at once, in one order."""

    client: Client
    width: int = 12
    handles: list[TurnHandle] = field(default_factory=list)
    assigned: dict[int, float] = field(default_factory=dict)  # place in the order of submission -> when first heard
    _stop: bool = False

    async def run(self) -> None:
        under_way = asyncio.Semaphore(self.width)
        async with asyncio.TaskGroup() as tasks:
            while not self._stop:
                await under_way.acquire()
                spec = TurnSpec(tuple(range(100, 250)), NEW_TOKENS, forced_tokens=True)
                handle = await self.client.submit(spec)
                self.handles.append(handle)
                tasks.create_task(self._follow(len(self.handles) - 1, handle, under_way))
                await asyncio.sleep(GAP_S)

    def stop(self) -> None:
        self._stop = True

    async def _follow(self, place: int, handle: TurnHandle, under_way: asyncio.Semaphore) -> None:
        async for event in handle.events():
            if event.state is not TurnState.PREFILL_FIFO:
                self.assigned.setdefault(place, event.at_s)
        under_way.release()

    async def new_assignment_after(self, at_s: float) -> float:
        """Seconds from then to the first turn that was given to an engine by a scheduler that we heard later."""
        seen = set(self.assigned)
        begun = time.monotonic()
        while not (new := [when for place, when in self.assigned.items() if place not in seen]):
            assert time.monotonic() - begun < WAIT_S, "no new assignment"
            await asyncio.sleep(0.005)
        return min(new) - at_s

    async def check(self) -> None:
        """Every turn answered once, and accepted in the order of submission."""
        results = [await handle.result() for handle in self.handles]
        assert {len(result.tokens) for result in results} == {NEW_TOKENS}
        assert {handle.results_seen for handle in self.handles} == {1}
        records = [await self.client.get(handle.turn_id) for handle in self.handles[-200:]]
        arrivals = [record.arrival for record in records]
        assert arrivals == sorted(arrivals)


@asynccontextmanager
async def running(cell: Cell, *agents: Child) -> AsyncIterator[Cell]:
    try:
        await cell.start(*agents)
        yield cell
    finally:
        await cell.stop()


@asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[Load]:
    """Load for as long as the block lasts; then all is seen to its end and checked."""
    load = Load(client)
    task = asyncio.create_task(load.run())
    try:
        await support.wait_until(lambda: len(load.assigned) > 5, timeout_s=WAIT_S)
        yield load
        load.stop()
        await asyncio.wait_for(task, WAIT_S)
        await load.check()
    finally:
        task.cancel()
