from dualpath.v1 import agents_pb2 as _agents_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerFrame(_message.Message):
    __slots__ = ("hello", "offer", "prefill_done", "abort", "want")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PREFILL_DONE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    hello: PeerHello
    offer: Offer
    prefill_done: PrefillDone
    abort: PeerAbort
    want: Want
    def __init__(self, hello: _Optional[_Union[PeerHello, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., prefill_done: _Optional[_Union[PrefillDone, _Mapping]] = ..., abort: _Optional[_Union[PeerAbort, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ...) -> None: ...

class PeerHello(_message.Message):
    __slots__ = ("protocol_version", "node_id", "agent_epoch", "layout_hash", "transfer_address", "transfer_kind")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_KIND_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    node_id: str
    agent_epoch: int
    layout_hash: str
    transfer_address: str
    transfer_kind: str
    def __init__(self, protocol_version: _Optional[int] = ..., node_id: _Optional[str] = ..., agent_epoch: _Optional[int] = ..., layout_hash: _Optional[str] = ..., transfer_address: _Optional[str] = ..., transfer_kind: _Optional[str] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: _agents_pb2.AttemptRef
    def __init__(self, attempt: _Optional[_Union[_agents_pb2.AttemptRef, _Mapping]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("attempt", "region", "region_bytes", "hit_tokens", "hit_shrunk")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    REGION_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_SHRUNK_FIELD_NUMBER: _ClassVar[int]
    attempt: _agents_pb2.AttemptRef
    region: int
    region_bytes: int
    hit_tokens: int
    hit_shrunk: bool
    def __init__(self, attempt: _Optional[_Union[_agents_pb2.AttemptRef, _Mapping]] = ..., region: _Optional[int] = ..., region_bytes: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., hit_shrunk: _Optional[bool] = ...) -> None: ...

class PrefillDone(_message.Message):
    __slots__ = ("attempt", "first_token", "hit_tokens")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    attempt: _agents_pb2.AttemptRef
    first_token: int
    hit_tokens: int
    def __init__(self, attempt: _Optional[_Union[_agents_pb2.AttemptRef, _Mapping]] = ..., first_token: _Optional[int] = ..., hit_tokens: _Optional[int] = ...) -> None: ...

class PeerAbort(_message.Message):
    __slots__ = ("attempt", "reason", "message", "valid_context_tokens")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALID_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    attempt: _agents_pb2.AttemptRef
    reason: str
    message: str
    valid_context_tokens: int
    def __init__(self, attempt: _Optional[_Union[_agents_pb2.AttemptRef, _Mapping]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., valid_context_tokens: _Optional[int] = ...) -> None: ...

class StreamTokens(_message.Message):
    __slots__ = ("turn_id", "attempt", "offset")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    attempt: int
    offset: int
    def __init__(self, turn_id: _Optional[str] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("attempt", "offset", "tokens", "ended")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    offset: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    ended: bool
    def __init__(self, attempt: _Optional[int] = ..., offset: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., ended: _Optional[bool] = ...) -> None: ...
