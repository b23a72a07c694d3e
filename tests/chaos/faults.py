"""What is done to a cluster. Each fault holds for a while, heals, and says in the history when, what and to whom.

kind      what the checker may expect of it
leader    the other scheduler takes over
redis     writes stop for a while, then go on with another primary or the same one
agent     the turns of one agent go elsewhere
other     nothing but that all laws hold
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
import redis.asyncio as redis

from dualpath.v1 import turns_pb2, turns_pb2_grpc

from .cluster import SERVICE, SKEWED, Cluster, SmallDisk, set_clock
from .history import History
from .network import Network
from .processes import Process
from .supervisor import Supervisor

NETWORK, DISK, CLOCK = "network namespaces", "a small disk", "libfaketime"  # what a fault may need
REDIS_DOWN_S = 4.0  # longer than Sentinels wait
DISK_FULL_S = 4.0
SHORT, LONG = (0.5,), (1.5, 2.5)  # in leases
CLOCKS = ("+2h", "+1h", "+0", "-1h", "-2h")
CUTS = 3
READERS, READER_TURNS = 20, 5
TAIL_BYTES = (1, 4000)


@dataclass(slots=True)
class Scene:
    """Everything a fault may touch."""

    cluster: Cluster
    supervisor: Supervisor
    history: History
    chance: random.Random
    disk: SmallDisk | None

    @property
    def lease_s(self) -> float:
        return self.cluster.shape.lease_s

    @property
    def network(self) -> Network:
        assert self.cluster.network is not None, "this fault needs namespaces"
        return self.cluster.network

    def leader(self) -> Process:
        return self.cluster.leader() or self.chance.choice(self.cluster.schedulers)

    def agent(self, role: str = "") -> Process:
        return self.chance.choice([agent for agent in self.cluster.agents if agent.name.startswith(role)])

    @asynccontextmanager
    async def fault(self, kind: str, victim: str, **more: object) -> AsyncIterator[None]:
        self.history.add("fault", kind=kind, victim=victim, epoch=self.cluster.epoch(), **more)
        yield
        self.history.add("healed", kind=kind, victim=victim)


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Act
    needs: str = ""


# processes


async def kill_leader(scene: Scene) -> None:
    victim = scene.leader()
    async with scene.fault("leader", victim.name):
        await scene.supervisor.kill(victim, down_s=scene.chance.choice((0.0, scene.lease_s)))


async def kill_standby(scene: Scene) -> None:
    victim = scene.cluster.standby()
    async with scene.fault("other", victim.name):
        await scene.supervisor.kill(victim)


async def kill_agent(scene: Scene) -> None:
    victim = scene.agent()
    async with scene.fault("agent", victim.name):
        await scene.supervisor.kill(victim, down_s=scene.chance.choice((0.0, scene.lease_s)))


async def stop_leader(scene: Scene) -> None:
    await _paused(scene, scene.leader(), "leader")


async def stop_agent(scene: Scene) -> None:
    await _paused(scene, scene.agent(), "agent")


async def _paused(scene: Scene, victim: Process, kind: str) -> None:
    leases = scene.chance.choice((*SHORT, *LONG))
    async with scene.fault(kind if leases in LONG else "other", victim.name, leases=leases):
        victim.pause()
        await asyncio.sleep(leases * scene.lease_s)
        victim.go_on()


# Redis


async def kill_primary(scene: Scene) -> None:
    victim = await scene.cluster.primary()
    async with scene.fault("redis", victim.name):
        await scene.supervisor.kill(victim, down_s=scene.chance.choice((0.0, REDIS_DOWN_S)))


async def stop_primary(scene: Scene) -> None:
    victim = await scene.cluster.primary()
    async with scene.fault("redis", victim.name):
        victim.pause()
        await asyncio.sleep(REDIS_DOWN_S)
        victim.go_on()


async def isolate_primary(scene: Scene) -> None:
    """A silent partition: connections stay open, nothing comes."""
    victim = await scene.cluster.primary()
    async with scene.fault("redis", victim.name):
        scene.network.isolate(victim.name)
        await asyncio.sleep(REDIS_DOWN_S)
        scene.network.heal()


# the network


async def cut_leader_from_redis(scene: Scene) -> None:
    victim = scene.leader()
    async with scene.fault("leader", victim.name):
        for name in (*scene.cluster.redis_at, *scene.cluster.sentinel_at):
            scene.network.cut_both(victim.name, name)
        await asyncio.sleep(scene.chance.choice(LONG) * scene.lease_s)
        scene.network.heal()


async def isolate_leader(scene: Scene) -> None:
    victim = scene.leader()
    async with scene.fault("leader", victim.name):
        scene.network.isolate(victim.name)
        await asyncio.sleep(scene.chance.choice(LONG) * scene.lease_s)
        scene.network.heal()


async def cut_agent_off(scene: Scene) -> None:
    """From the schedulers: in one direction or both."""
    victim, way = scene.agent(), scene.chance.choice(("up", "down", "both"))
    async with scene.fault("agent", victim.name, way=way):
        for name in scene.cluster.scheduler_at:
            if way != "down":
                scene.network.cut(victim.name, name)
            if way != "up":
                scene.network.cut(name, victim.name)
        await asyncio.sleep(scene.chance.choice(LONG) * scene.lease_s)
        scene.network.heal()


async def cut_pair(scene: Scene) -> None:
    """Between a prefill and a decode node: KV no longer comes over, in one direction or both."""
    pe, de, way = scene.agent("p"), scene.agent("d"), scene.chance.choice(("up", "down", "both"))
    async with scene.fault("other", f"{pe.name}-{de.name}", way=way):
        if way != "down":
            scene.network.cut(pe.name, de.name)
        if way != "up":
            scene.network.cut(de.name, pe.name)
        await asyncio.sleep(scene.chance.choice(LONG) * scene.lease_s)
        scene.network.heal()


async def slow_links(scene: Scene) -> None:
    """Of one agent and a part of the clients to the schedulers: each piece of each stream comes late."""
    async with scene.fault("other", "links"):
        for proxy in scene.cluster.proxies:
            proxy.delay_s = scene.chance.uniform(0.02, 0.3)
        await asyncio.sleep(scene.lease_s)
        for proxy in scene.cluster.proxies:
            proxy.heal()


async def cut_links(scene: Scene) -> None:
    """The same links break in the middle of a message, several times."""
    async with scene.fault("other", "links"):
        for _ in range(CUTS):
            for proxy in scene.cluster.proxies:
                proxy.cut_in_mid_message()
            await asyncio.sleep(scene.chance.uniform(0.1, 0.8))
            for proxy in scene.cluster.proxies:
                proxy.heal()
            await asyncio.sleep(scene.chance.uniform(0.1, 0.8))


async def stall_links(scene: Scene) -> None:
    """The same links take bytes and pass none on, in one direction."""
    way = scene.chance.choice(("up", "down"))
    async with scene.fault("other", "links", way=way):
        for proxy in scene.cluster.proxies:
            proxy.stalled = frozenset({way})
        await asyncio.sleep(scene.chance.choice((*SHORT, *LONG)) * scene.lease_s)
        for proxy in scene.cluster.proxies:
            proxy.heal()


# disks, clients


async def fill_disk(scene: Scene) -> None:
    """Of the first Redis and of the blocks of all agents."""
    assert scene.disk is not None, "this fault needs a small disk"
    primary = await scene.cluster.primary()
    async with scene.fault("redis" if primary.name == "r0" else "other", "disk"):
        scene.disk.fill()
        await asyncio.sleep(DISK_FULL_S)
        scene.disk.free()


async def jump_clock(scene: Scene) -> None:
    """The wall clock of a running process goes an hour or two forward or back, and after a lease again."""
    victim = scene.chance.choice(sorted(SKEWED))
    async with scene.fault("other", victim):
        for _ in range(2):
            set_clock(scene.cluster.folder, victim, scene.chance.choice(CLOCKS))
            await asyncio.sleep(scene.lease_s)


async def clients_that_do_not_read(scene: Scene) -> None:
    """They submit turns and never take an answer: others must not notice."""
    leader = scene.leader()
    host, port = scene.cluster.scheduler_at.get(leader.name, ("", 0))
    async with scene.fault("other", "readers"):
        channels = [grpc.aio.insecure_channel(f"{host}:{port}", options=(("r", n),)) for n in range(READERS)]
        calls = [turns_pb2_grpc.TurnsStub(channel).SubmitMany() for channel in channels]
        for number, call in enumerate(calls):
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(turns_pb2.SubmitBatch(turns=_turns(scene, number)))
        await asyncio.sleep(scene.lease_s)
        for call, channel in zip(calls, channels, strict=True):
            call.cancel()
            await channel.close()


def _turns(scene: Scene, number: int) -> list[turns_pb2.SubmitTurn]:
    turns = []
    for turn in range(READER_TURNS):
        key = f"reader-{scene.chance.randrange(1 << 40)}-{number}-{turn}"
        scene.history.add("unread", key=key)
        tokens = tuple(scene.chance.randrange(32_000) for _ in range(20))
        turns.append(turns_pb2.SubmitTurn(idempotency_key=key, tokens=tokens, max_new_tokens=4, forced_tokens=True))
    return turns


# what Redis itself may lose answers in: at the end, after all other faults


async def ask_for_failover(scene: Scene) -> None:
    """The old primary lives on, and the replica that acknowledged its last writes need not be the new one (H1)."""
    victim = await scene.cluster.primary()
    host, port = next(iter(scene.cluster.sentinel_at.values()))
    async with (
        scene.fault("redis", victim.name, lossy=True),
        redis.Redis(host=host, port=port, socket_timeout=5.0) as sentinel,
    ):
        with suppress(redis.RedisError):  # it may think that it has no good replica: then nothing happens
            await sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)  # type: ignore[no-untyped-call]
        await asyncio.sleep(1.0)


async def cut_redis_tail(scene: Scene) -> None:
    """All Redises stop, the primary's file loses its last bytes, and the replicas copy what is left."""
    primary = await scene.cluster.primary()
    victims = [primary, *(process for process in scene.cluster.redises if process is not primary)]
    async with scene.supervisor.left_alone(victims), scene.fault("redis", primary.name, lossy=True):
        for victim in victims:
            victim.end()
        await asyncio.gather(*(victim.gone() for victim in victims))
        folder = primary.log.parent if primary.name != "r0" else scene.cluster.disk
        files = (folder / primary.name / "appendonlydir").glob("*.incr.aof")
        tail = max(files, key=lambda path: path.stat().st_mtime)
        lost = min(scene.chance.randint(*TAIL_BYTES), tail.stat().st_size)
        os.truncate(tail, tail.stat().st_size - lost)
        scene.history.add("tail cut", redis=primary.name, bytes=lost)
        for victim in victims:
            victim.start()
            await victim.ready()


FAULTS: Sequence[Fault] = (
    Fault("leader killed", kill_leader),
    Fault("leader stopped", stop_leader),
    Fault("leader cut from Redis", cut_leader_from_redis, NETWORK),
    Fault("leader isolated", isolate_leader, NETWORK),
    Fault("standby killed", kill_standby),
    Fault("agent killed", kill_agent),
    Fault("agent stopped", stop_agent),
    Fault("agent cut from schedulers", cut_agent_off, NETWORK),
    Fault("pair cut", cut_pair, NETWORK),
    Fault("primary killed", kill_primary),
    Fault("primary stopped", stop_primary),
    Fault("primary isolated", isolate_primary, NETWORK),
    Fault("links slow", slow_links),
    Fault("links cut in mid message", cut_links),
    Fault("links stalled one way", stall_links),
    Fault("disk full", fill_disk, DISK),
    Fault("wall clock jumps", jump_clock, CLOCK),
    Fault("clients that do not read", clients_that_do_not_read),
)
LOSSY = (Fault("failover asked for", ask_for_failover), Fault("tail of Redis cut", cut_redis_tail))
