"""What goes over the wire comes back as it was."""

from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.ids import BlockKey, EngineId, GroupId, NodeId, SessionId, TurnId
from dualpath.model.load import EngineLoad, LoadReport, NicBytes, NodeLoad
from dualpath.model.turn import EndReason, Pair, Plan, ReadSide, Turn, TurnResult, TurnState
from dualpath.scheduler.lifecycle.records import DecisionNote, Seat, TurnEntry, encode_prompt
from dualpath.wire import agents as wire
from strategies import examples

counts = st.integers(0, 2**31)
tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20).map(tuple)
keys = st.lists(st.binary(min_size=32, max_size=32).map(BlockKey), max_size=4).map(tuple)
names = st.text("abc0123/-", min_size=1, max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    hit_keys = draw(keys)
    return Turn(
        turn_id=TurnId(draw(names)),
        session_id=SessionId(draw(names)),
        arrival=0,
        tokens=draw(tokens),
        max_new_tokens=draw(st.integers(1, 1000)),
        context_key=hit_keys[-1] if hit_keys else BlockKey(bytes(32)),
        hit_tokens=64 * len(hit_keys),
        hit_keys=hit_keys,
        forced_tokens=draw(st.booleans()),
        stop_tokens=draw(st.lists(counts, max_size=3).map(tuple)),
    )


results = st.builds(
    TurnResult,
    tokens=tokens,
    end_reason=st.sampled_from(EndReason),
    context_key=st.binary(min_size=32, max_size=32).map(BlockKey),
    context_tokens=counts,
    hit_tokens=counts,
    miss_tokens=counts,
    valid_context_tokens=counts,
    message=st.text(max_size=10),
)


@examples(1)
@given(turns(), counts, st.sampled_from(ReadSide))
def test_plans(turn: Turn, number: int, side: ReadSide) -> None:
    pair = Pair(EngineId("p/g0"), NodeId("p"), GroupId("P"), EngineId("d/g0"), NodeId("d"), GroupId("D"))
    plan = Plan(turn, 2, 3, number, pair, side, "p:1", "d:2")

    assert wire.plan_from_wire(wire.plan_to_wire(plan)) == plan


@examples(1)
@given(results)
def test_results(result: TurnResult) -> None:
    assert wire.result_from_wire(wire.result_to_wire(result)) == result


@examples(1)
@given(counts, counts, counts)
def test_load_reports(one: int, two: int, three: int) -> None:
    report = LoadReport(
        GroupId("g"),
        7,
        one,
        two,
        (EngineLoad(EngineId("n/g0"), 3, two, three),),
        (NodeLoad(NodeId("n"), three, one, NicBytes(one, two, three, one)),),
    )

    assert wire.report_from_wire(wire.report_to_wire(report, True), "g", 7) == report


@examples(1)
@given(turns(), st.one_of(st.none(), results), st.sampled_from(TurnState))
def test_records_in_the_store(turn: Turn, result: TurnResult | None, state: TurnState) -> None:
    entry = TurnEntry(turn, state, attempt=2, pe=Seat(EngineId("e"), NodeId("n"), GroupId("g")), result=result)
    entry.note(DecisionNote(1, 0.5, "prefill", "e", "short_queue", {"open_tokens": 3.0}))

    assert TurnEntry.decode(entry.encode(), encode_prompt(entry.turn), now_s=0.0) == entry
