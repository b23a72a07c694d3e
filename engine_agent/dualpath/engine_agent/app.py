"""Builds one agent process and runs it: the only place where backends, engines and servers are chosen and joined."""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from dualpath.engine_agent.batch.quota import AttentionCost
from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.leader import CHANNEL_OPTIONS, Identity, Uplink
from dualpath.engine_agent.members import MemberDesk
from dualpath.engine_agent.node import LocalNode
from dualpath.engine_agent.peer import PeerLinks, PeersService, SelfDescription
from dualpath.engine_agent.plan.notes import HandbackNote, HandbackReason, Note
from dualpath.engine_agent.ports import ComputeEngine
from dualpath.engine_agent.report import Group
from dualpath.engine_agent.settings import AgentSettings
from dualpath.engine_agent.traffic.buffers import BufferPool
from dualpath.engine_agent.traffic.decode import DecodeParts, DecodeRunner
from dualpath.engine_agent.traffic.decode_loop import DecodeLoop
from dualpath.engine_agent.traffic.forward import ForwardLoop
from dualpath.engine_agent.traffic.generation import GenerationBook
from dualpath.engine_agent.traffic.nics import Nics
from dualpath.engine_agent.traffic.persist import Persister
from dualpath.engine_agent.traffic.prefill import PrefillParts, PrefillRunner
from dualpath.engine_agent.traffic.reads import HitReader
from dualpath.engine_agent.transfer.tcp import TcpTransfer
from dualpath.model.errors import Refused
from dualpath.model.ids import CellId, EngineId, Namespace, NodeId
from dualpath.model.load import EngineCapacity, NodeInfo
from dualpath.model.turn import Role
from dualpath.storage_shim.backends.directory import DirectoryBackend
from dualpath.storage_shim.keys import namespace_for
from dualpath.storage_shim.reader import BlockReader
from dualpath.storage_shim.wrappers.paced import PacedBackend
from dualpath.storage_shim.writer import BlockWriter
from dualpath.v1 import peers_pb2, peers_pb2_grpc

log = structlog.get_logger("dualpath.agent")

SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


@dataclass(frozen=True, slots=True)
class Storage:
    """The node's way to the block store: one reader queue, one writer queue."""

    backend: PacedBackend
    reader: BlockReader
    writer: BlockWriter

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        self.backend.close()


class Agent:
    """One node, built and ready to run."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.agent_epoch = time.time_ns()  # rises with each start of this process
        self._engines = _build_engines(settings)
        engine = next(iter(self._engines.values()))
        self._layout = engine.layout
        self._namespace = namespace_for(
            engine.model_name, engine.model_revision, engine.dtype, engine.layout, tenant=settings.tenant
        )
        self._nics = Nics.with_rates(
            snic_bytes_per_s=settings.snic_bytes_per_s, cnic_bytes_per_s=settings.cnic_bytes_per_s
        )
        self._storage = _open_storage(settings, engine, self._namespace, self._nics)
        self._transfer = TcpTransfer(
            host=settings.listen.rpartition(":")[0] or "127.0.0.1",
            sent=self._nics.cnic_sent,
            received=self._nics.cnic_received,
        )
        self._me = SelfDescription(NodeId(settings.node_id), self.agent_epoch, self._layout.layout_hash, self._transfer)
        self._links = PeerLinks(self._me, self._transfer)
        self._generations = GenerationBook()
        role = "PE" if settings.role is Role.PREFILL else "DE"
        self._buffers = BufferPool(settings.buffer_bytes, name=f"{role} buffer")
        self._uplink: Uplink | None = None
        self._reads = HitReader(self._storage.reader, self._layout, on_change=self._change)
        self._loops: list[ForwardLoop | DecodeLoop] = []
        self._runner = self._build_runner()
        self.address = ""

    async def run(self, *, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain for at most drain_s and leave nothing behind."""
        async with AsyncExitStack() as closing:
            closing.callback(self._transfer.close)
            closing.callback(self._storage.close)
            closing.push_async_callback(self._links.close)
            server, group = await self._serve()
            closing.push_async_callback(server.stop, 0.2)
            assert self._uplink is not None
            tasks = [asyncio.create_task(loop.run()) for loop in self._loops]
            uplink = asyncio.create_task(self._uplink_when_complete(group))
            ready = asyncio.create_task(self._say_ready(self._uplink))
            closing.push_async_callback(_cancel_all, [*tasks, uplink, ready])
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait({uplink, waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                for task in (uplink, *tasks):
                    if task.done():
                        task.result()  # raises what ended it
            await self._drain()

    async def _uplink_when_complete(self, group: Group) -> None:
        assert self._uplink is not None
        await group.complete()
        await self._uplink.run()

    async def _say_ready(self, uplink: Uplink) -> None:
        """Serving is not enough: whoever waits for this file wants to find the group at the scheduler."""
        await uplink.connected.wait()
        _write_ready(self.settings.ready_file, self.address, self.settings)

    async def _serve(self) -> tuple["grpc.aio.Server", Group]:
        settings = self.settings
        server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            port = 0
            why = str(error)
        else:
            why = "port in use or not ours to take"
        if port == 0:
            raise Refused(f"cannot listen on {settings.listen}: {why}", retry_after_s=1.0, reason="PORT_IN_USE")
        host = settings.listen.rpartition(":")[0]
        self.address = settings.advertise or f"{host}:{port}"
        info = NodeInfo(
            node_id=NodeId(settings.node_id),
            address=self.address,
            buffer_bytes=settings.buffer_bytes,
            snic_bytes_per_s=settings.snic_bytes_per_s,
            cnic_bytes_per_s=settings.cnic_bytes_per_s,
        )
        capacities = tuple(EngineCapacity(e, info.node_id, settings.hbm_tokens) for e in self._engines)
        node = LocalNode(info, capacities, self._runner, buffers=self._buffers, reads=self._reads, nics=self._nics)
        group = Group(settings.role, node, nodes_wanted=settings.group_nodes)
        upstream = settings.leader or settings.scheduler
        self._uplink = Uplink(
            upstream,
            self._identity(),
            group,
            to_leader=bool(settings.leader),
        )
        desk = None
        if not settings.leader:
            desk = MemberDesk(group, self._uplink, group_id=settings.group_id, layout_hash=self._layout.layout_hash)
        decode = self._runner if isinstance(self._runner, DecodeRunner) else None
        peers_pb2_grpc.add_PeersServicer_to_server(PeersService(self._me, decode, self._generations, desk), server)
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
        names = (peers_pb2.DESCRIPTOR.services_by_name["Peers"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        await server.start()
        return server, group

    def _identity(self) -> Identity:
        engine = next(iter(self._engines.values()))
        return Identity(
            cell=CellId(self.settings.cell),
            group_id=self.settings.group_id,
            agent_epoch=self.agent_epoch,
            layout=self._layout,
            model_name=engine.model_name,
            model_revision=engine.model_revision,
            namespace=self._namespace,
            tokens_max=engine.tokens_max,
        )

    def _build_runner(self) -> PrefillRunner | DecodeRunner:
        settings = self.settings
        if settings.role is Role.PREFILL:
            cost = AttentionCost(
                per_token_pair_s=settings.attention_s_per_token_pair, per_token_s=settings.attention_s_per_token
            )
            forward = {
                name: ForwardLoop(engine, cost, self._nics, quota_s=settings.quota_s, name=name)
                for name, engine in self._engines.items()
            }
            self._loops.extend(forward.values())
            return PrefillRunner(
                PrefillParts(
                    layout=self._layout,
                    loops=forward,
                    buffers=self._buffers,
                    reads=self._reads,
                    peers=self._links,
                    hbm_tokens=settings.hbm_tokens,
                    peer_wait_s=settings.peer_wait_s,
                ),
                tell=self._tell,
            )
        decode = {name: DecodeLoop(engine, self._nics, name=name) for name, engine in self._engines.items()}
        self._loops.extend(decode.values())
        window = asyncio.Semaphore(settings.blocks_staged_max)
        return DecodeRunner(
            DecodeParts(
                layout=self._layout,
                namespace=self._namespace,
                loops=decode,
                buffers=self._buffers,
                reads=self._reads,
                transfer=self._transfer,
                persister=Persister(self._storage.writer, self._layout, window),
                generations=self._generations,
                hbm_tokens=settings.hbm_tokens,
                peer_wait_s=settings.peer_wait_s,
            ),
            tell=self._tell,
        )

    def _tell(self, note: Note) -> None:
        if self._uplink is not None:
            self._uplink.tell(note)

    def _change(self) -> None:
        if self._uplink is not None:
            self._uplink.change()

    async def _drain(self) -> None:
        """Stop taking turns, let running ones end, hand the rest back, see the commits acknowledged."""
        assert self._uplink is not None
        attempts = self._runner.attempts
        self._uplink.drain("agent is stopping")
        deadline = time.monotonic() + self.settings.drain_s
        await _until(lambda: not len(attempts) and not self._uplink_has_news(), deadline)
        for key in attempts.running():
            self._tell(HandbackNote(key, HandbackReason.DRAINING, "agent is stopping"))
        await attempts.cancel_all()
        await asyncio.sleep(0.05)  # one moment for the last frames to leave

    def _uplink_has_news(self) -> bool:
        return self._uplink is not None and self._uplink.connected.is_set() and self._uplink.unacked > 0


def _build_engines(settings: AgentSettings) -> dict[EngineId, ComputeEngine]:
    spec = EngineSpec(settings.engine, settings.engine_options)
    names = [EngineId(f"{settings.node_id}/g{rank}") for rank in range(settings.engines)]
    return {name: build_engine(spec) for name in names}


def _open_storage(settings: AgentSettings, engine: ComputeEngine, namespace: Namespace, nics: Nics) -> Storage:
    directory = DirectoryBackend(settings.storage, namespace, engine.layout, durable=settings.durable_storage)
    backend = PacedBackend(directory, reads=nics.snic_read, writes=nics.snic_write)
    reader = BlockReader(
        backend, engine.layout, threads=settings.reader_threads, requests_max=settings.reads_waiting_max
    )
    writer = BlockWriter(backend, threads=settings.writer_threads, queue_max=2 * settings.blocks_staged_max)
    return Storage(backend, reader, writer)


def _write_ready(path: Path | None, address: str, settings: AgentSettings) -> None:
    """Tell a supervisor, atomically, that this node serves."""
    if path is None:
        return
    body = json.dumps({"address": address, "node_id": settings.node_id, "pid": os.getpid()})
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(body)
    os.replace(name, path)


async def _cancel_all(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Poll: the conditions of a drain have no one event, and it happens once in a process's life."""
    while not condition() and time.monotonic() < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def serve(settings: AgentSettings) -> None:
    """Run one agent until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(settings)
    run: Awaitable[None] = agent.run(stop=stop)
    log.info("agent starts", node=settings.node_id, role=settings.role.value)
    await run
