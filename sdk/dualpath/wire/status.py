"""gRPC errors and refusals back into our tree: what a caller of the SDK sees."""

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dualpath.model.errors import Broken, DualPathError, OutcomeUnknown, Refused, Rejected, Stale, Standby
from dualpath.v1 import turns_pb2

UNAVAILABLE_RETRY_S = 0.5
_PRECONDITION = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)
_FROM_CODE = {code.value[0]: code for code in grpc.StatusCode}


def error_from_rpc(error: "grpc.RpcError") -> DualPathError:
    """The error an RPC ended with. A connection that broke is Refused(UNAVAILABLE): the call may be made again."""
    code, message = error.code(), error.details() or error.code().name
    reason, field, retry_s = "", "", None
    status = rpc_status.from_call(error) if error.trailing_metadata() else None
    for detail in status.details if status is not None else ():
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
        elif detail.Unpack(retry):
            retry_s = retry.retry_delay.ToMilliseconds() / 1000
    return _build(code, message, reason=reason or code.name, field=field, retry_after_s=retry_s)


def error_from_refusal(refused: turns_pb2.TurnError) -> DualPathError:
    """The error of one turn on a stream of many."""
    code = _FROM_CODE.get(refused.code, grpc.StatusCode.UNKNOWN)
    return _build(
        code,
        refused.message,
        reason=refused.reason,
        field=refused.field,
        retry_after_s=refused.retry_after_s or None,
    )


def _build(
    code: "grpc.StatusCode", message: str, *, reason: str, field: str, retry_after_s: float | None
) -> DualPathError:
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED if retry_after_s is None:
            # gRPC's own: the message was too large. Coming again would not help (FAULTS L2).
            return Rejected(message, field=field, reason="MESSAGE_TOO_LARGE")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Refused(message, retry_after_s=retry_after_s or UNAVAILABLE_RETRY_S, reason=reason)
        case grpc.StatusCode.UNAVAILABLE if reason == Standby.default_reason:
            return Standby(message, retry_after_s=retry_after_s or UNAVAILABLE_RETRY_S)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return Refused(message, retry_after_s=UNAVAILABLE_RETRY_S, reason="UNAVAILABLE")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return Rejected(message, field=field, reason=reason)
        case code if code in _PRECONDITION:
            return Rejected(message, field=field, reason=reason, precondition=True)
        case grpc.StatusCode.ABORTED:
            return Stale(message, reason=reason)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return OutcomeUnknown(message, reason="DEADLINE_EXCEEDED")
        case _:
            return Broken(message, reason=reason)
