"""What engines and nodes state about their load, and what a node can hold (§6: seq_e, tok_e, read_q; HBM, buffers)."""

from dataclasses import dataclass

from dualpath.model.ids import EngineId, GroupId, NodeId


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """hbm_tokens: KV tokens the engine's HBM holds (a DE's bound; a PE holds one layer of its batch)."""

    engine_id: EngineId
    node_id: NodeId
    hbm_tokens: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it introduces itself. Rates are of emulated NICs, None where the real NIC rules."""

    node_id: NodeId
    address: str  # host:port of its Peers service
    buffer_bytes: int  # PE buffer or DE buffer
    snic_bytes_per_s: float | None = None
    cnic_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    engine_id: EngineId
    open_turns: int  # seq_e: assigned and not finished
    open_tokens: int  # tok_e: their total tokens
    free_hbm_tokens: int


@dataclass(frozen=True, slots=True)
class NicBytes:
    """Bytes moved by a node's NICs since its agent started."""

    snic_read: int = 0
    snic_written: int = 0
    cnic_sent: int = 0
    cnic_received: int = 0


@dataclass(frozen=True, slots=True)
class NodeLoad:
    node_id: NodeId
    read_queue_tokens: int  # read_q: hit tokens queued or in service on the node's SNIC
    buffer_used_bytes: int = 0
    nic: NicBytes = NicBytes()


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One fetch of a group: the load of its engines and nodes, as of the assignment number `seen`."""

    group_id: GroupId
    agent_epoch: int
    report_seq: int
    seen: int
    engines: tuple[EngineLoad, ...]
    nodes: tuple[NodeLoad, ...]
