"""What passes between scheduler and agents: plans, load reports, results, and the closed choices they carry."""

from typing import Any, TypeVar

from dualpath.model.errors import Rejected
from dualpath.model.ids import BLOCK_KEY_BYTES, ROOT_KEY, BlockKey, EngineId, GroupId, NodeId, SessionId, TurnId
from dualpath.model.load import EngineLoad, LoadReport, NicBytes, NodeLoad
from dualpath.model.turn import EndReason, Pair, Plan, ReadSide, Role, Turn, TurnResult, TurnState
from dualpath.v1 import agents_pb2, turns_pb2

Word = TypeVar("Word")

_STATES = {state: turns_pb2.TurnState.Value(f"TURN_STATE_{state.name}") for state in TurnState}
_STATES_BACK = {number: state for state, number in _STATES.items()}
_ROLES = {role: agents_pb2.Role.Value(f"ROLE_{role.name}") for role in Role}
_ROLES_BACK = {number: role for role, number in _ROLES.items()}
_SIDES = {side: turns_pb2.ReadSide.Value(f"READ_SIDE_{side.name}") for side in ReadSide}
_SIDES_BACK = {number: side for side, number in _SIDES.items()}


def state_to_wire(state: TurnState) -> Any:
    return _STATES[state]


def state_from_wire(number: int) -> TurnState:
    """raises Rejected for a number this version does not know"""
    return _known(_STATES_BACK, number, "turn state")


def role_to_wire(role: Role) -> Any:
    return _ROLES[role]


def role_from_wire(number: int) -> Role:
    return _known(_ROLES_BACK, number, "role")


def read_side_to_wire(side: ReadSide | None) -> Any:
    return turns_pb2.READ_SIDE_UNSPECIFIED if side is None else _SIDES[side]


def read_side_from_wire(number: int) -> ReadSide | None:
    return None if number == turns_pb2.READ_SIDE_UNSPECIFIED else _known(_SIDES_BACK, number, "read side")


def plan_to_wire(plan: Plan) -> agents_pb2.Plan:
    turn, pair = plan.turn, plan.pair
    return agents_pb2.Plan(
        turn_id=turn.turn_id,
        attempt=plan.attempt,
        scheduler_epoch=plan.scheduler_epoch,
        assignment=plan.assignment,
        session_id=turn.session_id,
        pe=pair.pe,
        pe_node=pair.pe_node,
        pe_group=pair.pe_group,
        pe_address=plan.pe_address,
        de=pair.de,
        de_node=pair.de_node,
        de_group=pair.de_group,
        de_address=plan.de_address,
        read_side=read_side_to_wire(plan.read_side),
        hit_keys=b"".join(turn.hit_keys),
        hit_tokens=turn.hit_tokens,
        tokens=turn.tokens,
        max_new_tokens=turn.max_new_tokens,
        forced_tokens=turn.forced_tokens,
        stop_tokens=turn.stop_tokens,
        deadline_in_s=turn.deadline_at_s or 0.0,
    )


def plan_from_wire(pb: agents_pb2.Plan) -> Plan:
    """The turn's `arrival` and idempotency key stay with the scheduler; `deadline_at_s` holds the seconds left."""
    keys = split_keys(pb.hit_keys)
    turn = Turn(
        turn_id=TurnId(pb.turn_id),
        session_id=SessionId(pb.session_id),
        arrival=0,
        tokens=tuple(pb.tokens),
        max_new_tokens=pb.max_new_tokens,
        context_key=keys[-1] if keys else ROOT_KEY,
        hit_tokens=pb.hit_tokens,
        hit_keys=keys,
        forced_tokens=pb.forced_tokens,
        stop_tokens=tuple(pb.stop_tokens),
        deadline_at_s=pb.deadline_in_s or None,
    )
    pair = Pair(
        pe=EngineId(pb.pe),
        pe_node=NodeId(pb.pe_node),
        pe_group=GroupId(pb.pe_group),
        de=EngineId(pb.de),
        de_node=NodeId(pb.de_node),
        de_group=GroupId(pb.de_group),
    )
    return Plan(
        turn=turn,
        attempt=pb.attempt,
        scheduler_epoch=pb.scheduler_epoch,
        assignment=pb.assignment,
        pair=pair,
        read_side=read_side_from_wire(pb.read_side) or ReadSide.PE,
        pe_address=pb.pe_address,
        de_address=pb.de_address,
    )


def split_keys(joined: bytes) -> tuple[BlockKey, ...]:
    """Block keys laid end to end; raises Rejected if the length is no multiple of a key's."""
    if len(joined) % BLOCK_KEY_BYTES:
        message = f"block keys take {len(joined)} bytes, wanted a multiple of {BLOCK_KEY_BYTES}"
        raise Rejected(message, field="hit_keys")
    return tuple(BlockKey(joined[at : at + BLOCK_KEY_BYTES]) for at in range(0, len(joined), BLOCK_KEY_BYTES))


def report_to_wire(report: LoadReport, fetch: bool) -> agents_pb2.LoadReport:
    return agents_pb2.LoadReport(
        report_seq=report.report_seq,
        seen=report.seen,
        engines=[
            agents_pb2.EngineLoad(
                engine_id=load.engine_id,
                open_turns=load.open_turns,
                open_tokens=load.open_tokens,
                free_hbm_tokens=load.free_hbm_tokens,
            )
            for load in report.engines
        ],
        nodes=[node_load_to_wire(load) for load in report.nodes],
        fetch=fetch,
    )


def report_from_wire(pb: agents_pb2.LoadReport, group_id: str, agent_epoch: int) -> LoadReport:
    return LoadReport(
        group_id=GroupId(group_id),
        agent_epoch=agent_epoch,
        report_seq=pb.report_seq,
        seen=pb.seen,
        engines=tuple(
            EngineLoad(EngineId(e.engine_id), e.open_turns, e.open_tokens, e.free_hbm_tokens) for e in pb.engines
        ),
        nodes=tuple(node_load_from_wire(node) for node in pb.nodes),
    )


def node_load_to_wire(load: NodeLoad) -> agents_pb2.NodeLoad:
    return agents_pb2.NodeLoad(
        node_id=load.node_id,
        read_queue_tokens=load.read_queue_tokens,
        buffer_used_bytes=load.buffer_used_bytes,
        snic_read_bytes=load.nic.snic_read,
        snic_written_bytes=load.nic.snic_written,
        cnic_sent_bytes=load.nic.cnic_sent,
        cnic_received_bytes=load.nic.cnic_received,
    )


def node_load_from_wire(pb: agents_pb2.NodeLoad) -> NodeLoad:
    nic = NicBytes(pb.snic_read_bytes, pb.snic_written_bytes, pb.cnic_sent_bytes, pb.cnic_received_bytes)
    return NodeLoad(NodeId(pb.node_id), pb.read_queue_tokens, pb.buffer_used_bytes, nic)


def result_to_wire(result: TurnResult) -> turns_pb2.TurnResult:
    return turns_pb2.TurnResult(
        tokens=result.tokens,
        end_reason=result.end_reason,
        context_key=result.context_key,
        context_tokens=result.context_tokens,
        hit_tokens=result.hit_tokens,
        miss_tokens=result.miss_tokens,
        valid_context_tokens=result.valid_context_tokens,
        message=result.message,
    )


def result_from_wire(pb: turns_pb2.TurnResult, new_keys: tuple[BlockKey, ...] = ()) -> TurnResult:
    try:
        reason = EndReason(pb.end_reason)
    except ValueError as error:
        message = f"end reason {pb.end_reason!r}, wanted one of {', '.join(EndReason)}"
        raise Rejected(message, field="end_reason") from error
    return TurnResult(
        tokens=tuple(pb.tokens),
        end_reason=reason,
        context_key=BlockKey(pb.context_key) if pb.context_key else ROOT_KEY,
        context_tokens=pb.context_tokens,
        hit_tokens=pb.hit_tokens,
        miss_tokens=pb.miss_tokens,
        valid_context_tokens=pb.valid_context_tokens,
        message=pb.message,
        new_keys=new_keys,
    )


def _known(table: dict[int, Word], number: int, what: str) -> Word:
    try:
        return table[number]
    except KeyError as error:
        message = f"{what} {number} is unknown here, wanted one of {sorted(table)}"
        raise Rejected(message, field=what.replace(" ", "_")) from error
