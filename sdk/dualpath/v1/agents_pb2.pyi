from dualpath.v1 import turns_pb2 as _turns_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role

class FromGroupBatch(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[FromGroup]
    def __init__(self, frames: _Optional[_Iterable[_Union[FromGroup, _Mapping]]] = ...) -> None: ...

class ToGroupBatch(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[ToGroup]
    def __init__(self, frames: _Optional[_Iterable[_Union[ToGroup, _Mapping]]] = ...) -> None: ...

class FromGroup(_message.Message):
    __slots__ = ("hello", "report", "progress", "commit", "handback", "draining")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    HANDBACK_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: LoadReport
    progress: Progress
    commit: Commit
    handback: Handback
    draining: Draining
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[LoadReport, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., handback: _Optional[_Union[Handback, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "cell", "group_id", "role", "nodes", "engines", "layout_hash", "layout", "model_name", "model_revision", "namespace", "agent_epoch", "running", "block_tokens", "tokens_max")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    AGENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    cell: str
    group_id: str
    role: Role
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    engines: _containers.RepeatedCompositeFieldContainer[EngineCapacity]
    layout_hash: str
    layout: str
    model_name: str
    model_revision: str
    namespace: str
    agent_epoch: int
    running: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    block_tokens: int
    tokens_max: int
    def __init__(self, protocol_version: _Optional[int] = ..., cell: _Optional[str] = ..., group_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., engines: _Optional[_Iterable[_Union[EngineCapacity, _Mapping]]] = ..., layout_hash: _Optional[str] = ..., layout: _Optional[str] = ..., model_name: _Optional[str] = ..., model_revision: _Optional[str] = ..., namespace: _Optional[str] = ..., agent_epoch: _Optional[int] = ..., running: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., block_tokens: _Optional[int] = ..., tokens_max: _Optional[int] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "address", "buffer_bytes", "snic_bytes_per_s", "cnic_bytes_per_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    CNIC_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    buffer_bytes: int
    snic_bytes_per_s: float
    cnic_bytes_per_s: float
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., buffer_bytes: _Optional[int] = ..., snic_bytes_per_s: _Optional[float] = ..., cnic_bytes_per_s: _Optional[float] = ...) -> None: ...

class EngineCapacity(_message.Message):
    __slots__ = ("engine_id", "node_id", "hbm_tokens")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HBM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    node_id: str
    hbm_tokens: int
    def __init__(self, engine_id: _Optional[str] = ..., node_id: _Optional[str] = ..., hbm_tokens: _Optional[int] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("turn_id", "attempt")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    attempt: int
    def __init__(self, turn_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("report_seq", "seen", "engines", "nodes", "fetch")
    REPORT_SEQ_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    report_seq: int
    seen: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineLoad]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeLoad]
    fetch: bool
    def __init__(self, report_seq: _Optional[int] = ..., seen: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineLoad, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeLoad, _Mapping]]] = ..., fetch: _Optional[bool] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("engine_id", "open_turns", "open_tokens", "free_hbm_tokens")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_TURNS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_HBM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    open_turns: int
    open_tokens: int
    free_hbm_tokens: int
    def __init__(self, engine_id: _Optional[str] = ..., open_turns: _Optional[int] = ..., open_tokens: _Optional[int] = ..., free_hbm_tokens: _Optional[int] = ...) -> None: ...

class NodeLoad(_message.Message):
    __slots__ = ("node_id", "read_queue_tokens", "buffer_used_bytes", "snic_read_bytes", "snic_written_bytes", "cnic_sent_bytes", "cnic_received_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    CNIC_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CNIC_RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    read_queue_tokens: int
    buffer_used_bytes: int
    snic_read_bytes: int
    snic_written_bytes: int
    cnic_sent_bytes: int
    cnic_received_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., read_queue_tokens: _Optional[int] = ..., buffer_used_bytes: _Optional[int] = ..., snic_read_bytes: _Optional[int] = ..., snic_written_bytes: _Optional[int] = ..., cnic_sent_bytes: _Optional[int] = ..., cnic_received_bytes: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("attempt", "state", "read_done", "prefill_done")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    READ_DONE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_DONE_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    state: _turns_pb2.TurnState
    read_done: bool
    prefill_done: bool
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., state: _Optional[_Union[_turns_pb2.TurnState, str]] = ..., read_done: _Optional[bool] = ..., prefill_done: _Optional[bool] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("attempt", "result", "new_keys")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    NEW_KEYS_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    result: _turns_pb2.TurnResult
    new_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., result: _Optional[_Union[_turns_pb2.TurnResult, _Mapping]] = ..., new_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Handback(_message.Message):
    __slots__ = ("attempt", "reason", "message")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    reason: str
    message: str
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ToGroup(_message.Message):
    __slots__ = ("welcome", "plan", "cancel", "commit_ack", "stale", "limits", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ACK_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    plan: Plan
    cancel: CancelAttempt
    commit_ack: CommitAck
    stale: StaleAttempt
    limits: Limits
    drain: Drain
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., cancel: _Optional[_Union[CancelAttempt, _Mapping]] = ..., commit_ack: _Optional[_Union[CommitAck, _Mapping]] = ..., stale: _Optional[_Union[StaleAttempt, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("scheduler_epoch", "lease_s", "report_s", "assignment")
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    REPORT_S_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    scheduler_epoch: int
    lease_s: float
    report_s: float
    assignment: int
    def __init__(self, scheduler_epoch: _Optional[int] = ..., lease_s: _Optional[float] = ..., report_s: _Optional[float] = ..., assignment: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("turn_id", "attempt", "scheduler_epoch", "assignment", "session_id", "pe", "pe_node", "pe_group", "pe_address", "de", "de_node", "de_group", "de_address", "read_side", "hit_keys", "hit_tokens", "tokens", "max_new_tokens", "forced_tokens", "stop_tokens", "deadline_in_s")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PE_FIELD_NUMBER: _ClassVar[int]
    PE_NODE_FIELD_NUMBER: _ClassVar[int]
    PE_GROUP_FIELD_NUMBER: _ClassVar[int]
    PE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DE_FIELD_NUMBER: _ClassVar[int]
    DE_NODE_FIELD_NUMBER: _ClassVar[int]
    DE_GROUP_FIELD_NUMBER: _ClassVar[int]
    DE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READ_SIDE_FIELD_NUMBER: _ClassVar[int]
    HIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_S_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    attempt: int
    scheduler_epoch: int
    assignment: int
    session_id: str
    pe: str
    pe_node: str
    pe_group: str
    pe_address: str
    de: str
    de_node: str
    de_group: str
    de_address: str
    read_side: _turns_pb2.ReadSide
    hit_keys: bytes
    hit_tokens: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    max_new_tokens: int
    forced_tokens: bool
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    deadline_in_s: float
    def __init__(self, turn_id: _Optional[str] = ..., attempt: _Optional[int] = ..., scheduler_epoch: _Optional[int] = ..., assignment: _Optional[int] = ..., session_id: _Optional[str] = ..., pe: _Optional[str] = ..., pe_node: _Optional[str] = ..., pe_group: _Optional[str] = ..., pe_address: _Optional[str] = ..., de: _Optional[str] = ..., de_node: _Optional[str] = ..., de_group: _Optional[str] = ..., de_address: _Optional[str] = ..., read_side: _Optional[_Union[_turns_pb2.ReadSide, str]] = ..., hit_keys: _Optional[bytes] = ..., hit_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., max_new_tokens: _Optional[int] = ..., forced_tokens: _Optional[bool] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., deadline_in_s: _Optional[float] = ...) -> None: ...

class CancelAttempt(_message.Message):
    __slots__ = ("attempt", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    reason: str
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class CommitAck(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ...) -> None: ...

class StaleAttempt(_message.Message):
    __slots__ = ("attempt", "message")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    message: str
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("quota_s",)
    QUOTA_S_FIELD_NUMBER: _ClassVar[int]
    quota_s: float
    def __init__(self, quota_s: _Optional[float] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("deadline_s",)
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    deadline_s: float
    def __init__(self, deadline_s: _Optional[float] = ...) -> None: ...
