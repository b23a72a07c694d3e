"""Stubs <-> what the service speaks; only what clients and operators see (agents' messages live in dualpath.wire)."""

from dualpath.model.errors import DualPathError, Refused, Rejected
from dualpath.model.ids import ROOT_KEY, BlockKey, SessionId
from dualpath.scheduler.api.status import code_of
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.policy.decisions import PlacementReason, ReadReason, StopReason, describe
from dualpath.scheduler.service.intake import Submission
from dualpath.scheduler.service.messages import TurnNews
from dualpath.v1 import turns_pb2
from dualpath.wire import agents as wire


def submission_of(pb: turns_pb2.SubmitTurn) -> Submission:
    return Submission(
        idempotency_key=pb.idempotency_key,
        session_id=SessionId(pb.session_id),
        context_key=BlockKey(pb.context_key) if pb.context_key else ROOT_KEY,
        context_tokens=pb.context_tokens,
        tokens=tuple(pb.tokens),
        max_new_tokens=pb.max_new_tokens,
        forced_tokens=pb.forced_tokens,
        stop_tokens=tuple(pb.stop_tokens),
        deadline_s=pb.deadline_s,
        tenant=pb.tenant,
        priority=pb.priority,
    )


def event_of(news: TurnNews) -> turns_pb2.TurnEvent:
    event = turns_pb2.TurnEvent(
        turn_id=news.turn_id,
        idempotency_key=news.idempotency_key,
        attempt=news.attempt,
        state=wire.state_to_wire(news.state),
        first_token=news.first_token,
        de_address=news.de_address,
        pe=news.pe,
        de=news.de,
        read_side=wire.read_side_to_wire(news.read_side),
    )
    if news.result is not None:
        event.result.CopyFrom(wire.result_to_wire(news.result))
    return event


def refusal_of(idempotency_key: str, error: DualPathError) -> turns_pb2.TurnEvent:
    """The event of a turn that was not accepted (SubmitMany)."""
    refused = turns_pb2.TurnError(
        code=code_of(error),
        reason=error.reason,
        message=str(error),
        field=error.field if isinstance(error, Rejected) else "",
        retry_after_s=error.retry_after_s if isinstance(error, Refused) else 0.0,
    )
    return turns_pb2.TurnEvent(idempotency_key=idempotency_key, refused=refused)


def record_of(entry: TurnEntry) -> turns_pb2.TurnRecord:
    turn = entry.turn
    record = turns_pb2.TurnRecord(
        turn_id=turn.turn_id,
        idempotency_key=turn.idempotency_key,
        session_id=turn.session_id,
        arrival=turn.arrival,
        attempt=entry.attempt,
        state=wire.state_to_wire(entry.state),
        hit_tokens=turn.hit_tokens,
        miss_tokens=turn.miss_tokens,
        max_new_tokens=turn.max_new_tokens,
        pe=entry.pe.engine_id if entry.pe else "",
        de=entry.de.engine_id if entry.de else "",
        read_side=wire.read_side_to_wire(entry.read_side),
        tenant=turn.tenant,
        priority=turn.priority,
    )
    if entry.result is not None:
        record.result.CopyFrom(wire.result_to_wire(entry.result))
    return record


def decisions_of(entry: TurnEntry) -> list[turns_pb2.Decision]:
    return [
        turns_pb2.Decision(
            attempt=note.attempt,
            after_s=note.after_s,
            step=note.step,
            choice=note.choice,
            reason=note.reason,
            sentence=_sentence(note.reason),
            inputs=note.inputs,
        )
        for note in entry.decisions
    ]


def _sentence(reason: str) -> str:
    for known in (*PlacementReason, *ReadReason, *StopReason):
        if known == reason:
            return describe(known)
    return reason.replace("_", " ")
