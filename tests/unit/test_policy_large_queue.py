"""A fetch looks only at as much of a long line as it places."""

from collections.abc import Sequence
from typing import overload

from dualpath.model.ids import EngineId, NodeId, TurnId
from dualpath.scheduler.policy.decode import assign_decode
from dualpath.scheduler.policy.prefill import assign_prefill
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, EngineView, PolicyLimits, PrefillSnapshot, WaitingTurn


class CountedLine(Sequence[WaitingTurn]):
    """A million turns that are made when they are looked at."""

    def __init__(self) -> None:
        self.looked_at = 0

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, index: int) -> WaitingTurn: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WaitingTurn]: ...
    def __getitem__(self, index: int | slice) -> WaitingTurn | Sequence[WaitingTurn]:
        assert isinstance(index, int), "a slice would copy the line"
        self.looked_at += 1
        return WaitingTurn(TurnId(f"t{index}"), index, 0, 100)


def _engines(count: int, *, open_tokens: int = 0, free_hbm_tokens: int = 0) -> tuple[EngineView, ...]:
    return tuple(
        EngineView(EngineId(f"e{i}"), NodeId(f"n{i // 8}"), i, 0, open_tokens, free_hbm_tokens) for i in range(count)
    )


def test_a_prefill_fetch_looks_at_one_turn_more_than_it_places() -> None:
    line = CountedLine()

    decision = assign_prefill(PrefillSnapshot(line, _engines(8), {}), PolicyLimits(beta_tokens=99))

    assert len(decision.placements) == 8
    assert line.looked_at == 9
    assert decision.waiting == 999_992


def test_an_overloaded_group_looks_at_the_head_only() -> None:
    line = CountedLine()

    assign_prefill(PrefillSnapshot(line, _engines(8, open_tokens=100), {}), PolicyLimits(beta_tokens=99))

    assert line.looked_at == 1


def test_a_decode_fetch_looks_twice_at_what_fits() -> None:
    """Once for the high mark, once to place; each time one turn more that does not fit."""
    line = CountedLine()

    decision = assign_decode(DecodeSnapshot(line, _engines(8, free_hbm_tokens=101)), PolicyLimits())

    assert len(decision.placements) == 8
    assert line.looked_at == 18


def test_1152_engines_share_a_long_line_in_one_fetch() -> None:
    turns = tuple(WaitingTurn(TurnId(f"t{i}"), i, 0, 100) for i in range(11_520))

    decision = assign_prefill(PrefillSnapshot(turns, _engines(1_152), {}), PolicyLimits())

    assert sorted(p.open_turns for p in decision.placements) == [n for n in range(10) for _ in range(1_152)]
