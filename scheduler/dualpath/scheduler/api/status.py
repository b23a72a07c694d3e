"""One table from our errors to gRPC status, with google.rpc details (ErrorInfo, BadRequest, RetryInfo)."""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from dualpath.model.errors import Broken, DualPathError, OutcomeUnknown, Refused, Rejected, Stale, Standby

DOMAIN = "dualpath.dev"


def code_of(error: DualPathError) -> int:
    """The google.rpc code of an error; the same number as gRPC's."""
    match error:
        case Standby():
            return int(code_pb2.UNAVAILABLE)
        case Refused():
            return int(code_pb2.RESOURCE_EXHAUSTED)
        case Rejected(reason="UNKNOWN_TURN"):
            return int(code_pb2.NOT_FOUND)
        case Rejected(precondition=True):
            return int(code_pb2.FAILED_PRECONDITION)
        case Rejected():
            return int(code_pb2.INVALID_ARGUMENT)
        case Stale():
            return int(code_pb2.ABORTED)
        case OutcomeUnknown():
            return int(code_pb2.UNAVAILABLE)
        case Broken():
            return int(code_pb2.INTERNAL)
        case _:
            return int(code_pb2.UNKNOWN)


def status_of(error: DualPathError) -> status_pb2.Status:
    """The error as google.rpc.Status with its details."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))]
    if isinstance(error, Refused):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(1000 * error.retry_after_s))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if isinstance(error, Rejected) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=str(error))
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    return status_pb2.Status(code=code_of(error), message=str(error), details=details)


async def abort(context: "grpc.aio.ServicerContext", error: DualPathError) -> None:
    """End an RPC with an error; does not return."""
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
