"""A whole cell on this machine: a scheduler and one agent process per node, as children of this process."""

import json
import socket
from pathlib import Path
from types import TracebackType

from dualpath.cli.cell_config import CellConfig
from dualpath.cli.supervisor import ChildSpec, Supervisor, free_or_refuse

MB = 1_000_000
DRAIN_S = 3.0  # time running turns get at Ctrl-C


class LocalCell:
    """Use as `async with LocalCell(config) as cell`; `cell.address` is the scheduler's."""

    def __init__(self, config: CellConfig) -> None:
        self.config = config
        self.data = config.data.resolve()
        self.address = config.address
        self.supervisor = Supervisor([])
        self._claim: Path | None = None

    async def __aenter__(self) -> "LocalCell":
        self._claim = free_or_refuse(self.data)
        try:
            # with port 0 the scheduler finds a free port; agents must know it, and a restart must take the same one
            self.supervisor = Supervisor([self._scheduler()])
            [body] = await self.supervisor.start()
            self.address = str(body["address"])
            scheduler = self.supervisor.children[0]
            scheduler.spec = self._scheduler()
            agents = Supervisor([scheduler.spec, *self._agents()])
            agents.children[0] = scheduler
            self.supervisor = agents
            for child in agents.children[1:]:
                child.start()
            for child in agents.children[1:]:
                await child.ready()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.supervisor.stop()
        if self._claim is not None:
            self._claim.unlink(missing_ok=True)

    def _scheduler(self) -> ChildSpec:
        config = self.config
        flags: dict[str, object] = {
            "listen": self.address,
            "data": self.data / "scheduler",
            "policy": config.policy,
            "alpha-tokens": config.alpha_tokens,
            "beta-tokens": config.beta_tokens,
            "lease-s": config.lease_s,
            "redis-url": config.redis_url or None,
            "http": config.http or None,
        }
        return self._spec("scheduler", "dualpath.scheduler", flags)

    def _agents(self) -> list[ChildSpec]:
        prefill = [f"p{n}" for n in range(self.config.prefill_nodes)]
        decode = [f"d{n}" for n in range(self.config.decode_nodes)]
        return [*self._groups("prefill", prefill), *self._groups("decode", decode)]

    def _groups(self, role: str, nodes: list[str]) -> list[ChildSpec]:
        """Cut a role's nodes into groups; members must know where their leader listens."""
        size, specs = self.config.nodes_per_group, []
        for number, start in enumerate(range(0, len(nodes), size)):
            members = nodes[start : start + size]
            group: dict[str, object] = {"group-id": f"{role}-{number}"}
            leads, follows = dict(group), dict(group)
            if len(members) > 1:
                address = f"127.0.0.1:{_free_port()}"
                leads |= {"group-nodes": len(members), "listen": address}
                follows |= {"leader": address}
            specs += [self._agent(role, node, leads if node == members[0] else follows) for node in members]
        return specs

    def _agent(self, role: str, node: str, group: dict[str, object]) -> ChildSpec:
        config = self.config
        flags: dict[str, object] = {
            "role": role,
            "node-id": node,
            **group,
            "scheduler": self.address,
            "engines": config.engines_per_node,
            "engine": config.engine,
            "engine-options": json.dumps(config.engine_options),
            "storage": self.data / "kv",
            "data": self.data / node,
            "snic-bytes-per-s": config.snic_mb_per_s * MB or None,
            "cnic-bytes-per-s": config.cnic_mb_per_s * MB or None,
            "buffer-bytes": int(config.buffer_mb * MB),
            "hbm-tokens": config.hbm_tokens,
            "quota-s": config.quota_s,
            "drain-s": DRAIN_S,
        }
        durable = "--durable-storage" if config.durable_storage else "--no-durable-storage"
        return self._spec(node, "dualpath.engine_agent", flags, durable)

    def _spec(self, name: str, module: str, flags: dict[str, object], *more: str) -> ChildSpec:
        ready = self.data / "run" / f"{name}.ready"
        flags = flags | {"ready-file": ready}
        arguments = [part for flag, value in flags.items() if value is not None for part in (f"--{flag}", str(value))]
        return ChildSpec(name, module, (*arguments, *more), ready, self.data / "logs" / f"{name}.log")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
