"""One node as the rest of the agent sees it: takes plans, tells notes, states its load."""

from dataclasses import dataclass

from dualpath.engine_agent.plan.notes import AttemptKey
from dualpath.engine_agent.traffic.buffers import BufferPool
from dualpath.engine_agent.traffic.decode import DecodeRunner
from dualpath.engine_agent.traffic.nics import Nics
from dualpath.engine_agent.traffic.prefill import PrefillRunner
from dualpath.engine_agent.traffic.reads import HitReader
from dualpath.model.load import EngineCapacity, EngineLoad, NodeInfo, NodeLoad
from dualpath.model.turn import Plan


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What a node (or a whole group) has and how loaded it is: the body of a report."""

    engines: tuple[EngineLoad, ...]
    nodes: tuple[NodeLoad, ...]
    seen: int


class LocalNode:
    """The node this process runs."""

    def __init__(
        self,
        info: NodeInfo,
        capacities: tuple[EngineCapacity, ...],
        runner: PrefillRunner | DecodeRunner,
        *,
        buffers: BufferPool,
        reads: HitReader,
        nics: Nics,
    ) -> None:
        self.info = info
        self.capacities = capacities
        self._runner = runner
        self._buffers = buffers
        self._reads = reads
        self._nics = nics

    def accept(self, plan: Plan) -> None:
        self._runner.accept(plan)

    def cancel(self, key: AttemptKey) -> None:
        self._runner.attempts.cancel(key)

    def running(self) -> tuple[AttemptKey, ...]:
        return self._runner.attempts.running()

    def part(self) -> GroupPart:
        load = NodeLoad(
            node_id=self.info.node_id,
            read_queue_tokens=self._reads.read_queue_tokens,
            buffer_used_bytes=self._buffers.used_bytes,
            nic=self._nics.bytes_moved(),
        )
        return GroupPart(self._runner.engine_loads(), (load,), self._runner.attempts.seen)

    async def stop(self) -> None:
        await self._runner.attempts.cancel_all()
