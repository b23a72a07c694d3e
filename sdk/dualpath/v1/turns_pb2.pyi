from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TurnState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_STATE_UNSPECIFIED: _ClassVar[TurnState]
    TURN_STATE_PREFILL_FIFO: _ClassVar[TurnState]
    TURN_STATE_DECODE_QUEUE: _ClassVar[TurnState]
    TURN_STATE_GROUP_QUEUE: _ClassVar[TurnState]
    TURN_STATE_PLANNED: _ClassVar[TurnState]
    TURN_STATE_READING: _ClassVar[TurnState]
    TURN_STATE_PREFILLING: _ClassVar[TurnState]
    TURN_STATE_DECODING: _ClassVar[TurnState]
    TURN_STATE_COMMITTED: _ClassVar[TurnState]
    TURN_STATE_FAILED: _ClassVar[TurnState]
    TURN_STATE_CANCELLED: _ClassVar[TurnState]

class ReadSide(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_SIDE_UNSPECIFIED: _ClassVar[ReadSide]
    READ_SIDE_PE: _ClassVar[ReadSide]
    READ_SIDE_DE: _ClassVar[ReadSide]
TURN_STATE_UNSPECIFIED: TurnState
TURN_STATE_PREFILL_FIFO: TurnState
TURN_STATE_DECODE_QUEUE: TurnState
TURN_STATE_GROUP_QUEUE: TurnState
TURN_STATE_PLANNED: TurnState
TURN_STATE_READING: TurnState
TURN_STATE_PREFILLING: TurnState
TURN_STATE_DECODING: TurnState
TURN_STATE_COMMITTED: TurnState
TURN_STATE_FAILED: TurnState
TURN_STATE_CANCELLED: TurnState
READ_SIDE_UNSPECIFIED: ReadSide
READ_SIDE_PE: ReadSide
READ_SIDE_DE: ReadSide

class SubmitTurn(_message.Message):
    __slots__ = ("idempotency_key", "session_id", "context_key", "context_tokens", "tokens", "max_new_tokens", "forced_tokens", "stop_tokens", "deadline_s", "tenant", "priority")
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    session_id: str
    context_key: bytes
    context_tokens: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    max_new_tokens: int
    forced_tokens: bool
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    deadline_s: float
    tenant: str
    priority: int
    def __init__(self, idempotency_key: _Optional[str] = ..., session_id: _Optional[str] = ..., context_key: _Optional[bytes] = ..., context_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., max_new_tokens: _Optional[int] = ..., forced_tokens: _Optional[bool] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., deadline_s: _Optional[float] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class SubmitBatch(_message.Message):
    __slots__ = ("turns",)
    TURNS_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[SubmitTurn]
    def __init__(self, turns: _Optional[_Iterable[_Union[SubmitTurn, _Mapping]]] = ...) -> None: ...

class TurnEvent(_message.Message):
    __slots__ = ("turn_id", "idempotency_key", "attempt", "state", "first_token", "de_address", "result", "refused", "pe", "de", "read_side")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PE_FIELD_NUMBER: _ClassVar[int]
    DE_FIELD_NUMBER: _ClassVar[int]
    READ_SIDE_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    idempotency_key: str
    attempt: int
    state: TurnState
    first_token: bool
    de_address: str
    result: TurnResult
    refused: TurnError
    pe: str
    de: str
    read_side: ReadSide
    def __init__(self, turn_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[TurnState, str]] = ..., first_token: _Optional[bool] = ..., de_address: _Optional[str] = ..., result: _Optional[_Union[TurnResult, _Mapping]] = ..., refused: _Optional[_Union[TurnError, _Mapping]] = ..., pe: _Optional[str] = ..., de: _Optional[str] = ..., read_side: _Optional[_Union[ReadSide, str]] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TurnEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[TurnEvent, _Mapping]]] = ...) -> None: ...

class TurnError(_message.Message):
    __slots__ = ("code", "reason", "message", "field", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    field: str
    retry_after_s: float
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class TurnResult(_message.Message):
    __slots__ = ("tokens", "end_reason", "context_key", "context_tokens", "hit_tokens", "miss_tokens", "valid_context_tokens", "message")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VALID_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    end_reason: str
    context_key: bytes
    context_tokens: int
    hit_tokens: int
    miss_tokens: int
    valid_context_tokens: int
    message: str
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., end_reason: _Optional[str] = ..., context_key: _Optional[bytes] = ..., context_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., miss_tokens: _Optional[int] = ..., valid_context_tokens: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class TurnRef(_message.Message):
    __slots__ = ("turn_id", "idempotency_key")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    idempotency_key: str
    def __init__(self, turn_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class TurnRecord(_message.Message):
    __slots__ = ("turn_id", "idempotency_key", "session_id", "arrival", "attempt", "state", "hit_tokens", "miss_tokens", "max_new_tokens", "pe", "de", "read_side", "result", "tenant", "priority")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PE_FIELD_NUMBER: _ClassVar[int]
    DE_FIELD_NUMBER: _ClassVar[int]
    READ_SIDE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    idempotency_key: str
    session_id: str
    arrival: int
    attempt: int
    state: TurnState
    hit_tokens: int
    miss_tokens: int
    max_new_tokens: int
    pe: str
    de: str
    read_side: ReadSide
    result: TurnResult
    tenant: str
    priority: int
    def __init__(self, turn_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., session_id: _Optional[str] = ..., arrival: _Optional[int] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[TurnState, str]] = ..., hit_tokens: _Optional[int] = ..., miss_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., pe: _Optional[str] = ..., de: _Optional[str] = ..., read_side: _Optional[_Union[ReadSide, str]] = ..., result: _Optional[_Union[TurnResult, _Mapping]] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("turn", "place_in_line", "waits_for", "decisions")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PLACE_IN_LINE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    turn: TurnRecord
    place_in_line: int
    waits_for: str
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, turn: _Optional[_Union[TurnRecord, _Mapping]] = ..., place_in_line: _Optional[int] = ..., waits_for: _Optional[str] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("attempt", "after_s", "step", "choice", "reason", "sentence", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AFTER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    after_s: float
    step: str
    choice: str
    reason: str
    sentence: str
    inputs: _containers.ScalarMap[str, float]
    def __init__(self, attempt: _Optional[int] = ..., after_s: _Optional[float] = ..., step: _Optional[str] = ..., choice: _Optional[str] = ..., reason: _Optional[str] = ..., sentence: _Optional[str] = ..., inputs: _Optional[_Mapping[str, float]] = ...) -> None: ...
