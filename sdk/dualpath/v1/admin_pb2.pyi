from dualpath.v1 import agents_pb2 as _agents_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainGroupRequest(_message.Message):
    __slots__ = ("group_id", "deadline_s")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    deadline_s: float
    def __init__(self, group_id: _Optional[str] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class CellStatus(_message.Message):
    __slots__ = ("cell", "policy", "scheduler_epoch", "store", "uptime_s", "scheduler_cpu_s", "alpha_tokens", "beta_tokens", "high_mark_factor", "quota_s", "queues", "groups", "accepted", "committed", "failed", "cancelled", "waiting", "running", "de_side_reads", "pe_side_reads", "attempts_returned", "stale_commits")
    CELL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_CPU_S_FIELD_NUMBER: _ClassVar[int]
    ALPHA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BETA_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIGH_MARK_FACTOR_FIELD_NUMBER: _ClassVar[int]
    QUOTA_S_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DE_SIDE_READS_FIELD_NUMBER: _ClassVar[int]
    PE_SIDE_READS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_RETURNED_FIELD_NUMBER: _ClassVar[int]
    STALE_COMMITS_FIELD_NUMBER: _ClassVar[int]
    cell: str
    policy: str
    scheduler_epoch: int
    store: str
    uptime_s: float
    scheduler_cpu_s: float
    alpha_tokens: int
    beta_tokens: int
    high_mark_factor: float
    quota_s: float
    queues: QueueStatus
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    accepted: int
    committed: int
    failed: int
    cancelled: int
    waiting: int
    running: int
    de_side_reads: int
    pe_side_reads: int
    attempts_returned: int
    stale_commits: int
    def __init__(self, cell: _Optional[str] = ..., policy: _Optional[str] = ..., scheduler_epoch: _Optional[int] = ..., store: _Optional[str] = ..., uptime_s: _Optional[float] = ..., scheduler_cpu_s: _Optional[float] = ..., alpha_tokens: _Optional[int] = ..., beta_tokens: _Optional[int] = ..., high_mark_factor: _Optional[float] = ..., quota_s: _Optional[float] = ..., queues: _Optional[_Union[QueueStatus, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., accepted: _Optional[int] = ..., committed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., de_side_reads: _Optional[int] = ..., pe_side_reads: _Optional[int] = ..., attempts_returned: _Optional[int] = ..., stale_commits: _Optional[int] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("prefill_fifo", "decode_queue", "group_queues", "oldest_wait_s")
    class GroupQueuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PREFILL_FIFO_FIELD_NUMBER: _ClassVar[int]
    DECODE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_QUEUES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    prefill_fifo: int
    decode_queue: int
    group_queues: _containers.ScalarMap[str, int]
    oldest_wait_s: float
    def __init__(self, prefill_fifo: _Optional[int] = ..., decode_queue: _Optional[int] = ..., group_queues: _Optional[_Mapping[str, int]] = ..., oldest_wait_s: _Optional[float] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("group_id", "role", "state", "last_report_s", "engines", "nodes")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_REPORT_S_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    role: _agents_pb2.Role
    state: str
    last_report_s: float
    engines: _containers.RepeatedCompositeFieldContainer[EngineStatus]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    def __init__(self, group_id: _Optional[str] = ..., role: _Optional[_Union[_agents_pb2.Role, str]] = ..., state: _Optional[str] = ..., last_report_s: _Optional[float] = ..., engines: _Optional[_Iterable[_Union[EngineStatus, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("engine_id", "node_id", "open_turns", "open_tokens", "hbm_tokens", "free_hbm_tokens")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_TURNS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HBM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_HBM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    node_id: str
    open_turns: int
    open_tokens: int
    hbm_tokens: int
    free_hbm_tokens: int
    def __init__(self, engine_id: _Optional[str] = ..., node_id: _Optional[str] = ..., open_turns: _Optional[int] = ..., open_tokens: _Optional[int] = ..., hbm_tokens: _Optional[int] = ..., free_hbm_tokens: _Optional[int] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("info", "load")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    info: _agents_pb2.NodeInfo
    load: _agents_pb2.NodeLoad
    def __init__(self, info: _Optional[_Union[_agents_pb2.NodeInfo, _Mapping]] = ..., load: _Optional[_Union[_agents_pb2.NodeLoad, _Mapping]] = ...) -> None: ...
