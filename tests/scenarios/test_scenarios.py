"""Scenarios: a situation in a few lines, and below `----` what the policy does with it.

Each .txt file here is one story. DUALPATH_REWRITE_SCENARIOS=1 rewrites the lower halves; review that as a diff.

    policy dualpath                              one of the registry; dualpath if absent
    limits alpha=100 beta=50 high_mark=1.05 classify=each_placement
    node n0 read_queue=10
    engine n0/g0 open=0 turns=0 free_hbm=100     in the group of the fetches to come
    group g0 open=0 queued=0                     a DE group, for `spread`
    turns t1=60 t2=128+30/5                      joins the line: [hit +] miss [/ max new tokens]
    fetch pe-group-0                             places turns on PEs; a name that starts with de: on DEs
    spread                                       DE phase 1: drains the line onto the groups
    read t1 pe=n0 de=n1                          chooses the read side, then adds t1's hit tokens to that queue
    end t1                                       t1 leaves its engine

Placements change the loads; the rotation moves on with each fetch, spread and read.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dualpath.model.ids import EngineId, GroupId, NodeId, TurnId
from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import Placement, StopReason
from dualpath.scheduler.policy.registry import DUALPATH, Policy, policy_named
from dualpath.scheduler.policy.snapshot import (
    Classify,
    DecodeSnapshot,
    EngineView,
    GroupView,
    PolicyLimits,
    PrefillSnapshot,
    WaitingTurn,
)

FOLDER = Path(__file__).parent
SCENARIOS = sorted(FOLDER.glob("*.txt"))
RULE = "----\n"
REWRITE = os.environ.get("DUALPATH_REWRITE_SCENARIOS") == "1"


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_the_story_ends_as_written(path: Path) -> None:
    story, rule, expected = path.read_text(encoding="utf-8").partition(RULE)
    assert rule or REWRITE, f"{path.name} has no line {RULE.strip()!r}"

    happened = "".join(f"{line}\n" for line in Scenario().play(story))

    if REWRITE:
        path.write_text(f"{story.rstrip()}\n{RULE}{happened}", encoding="utf-8")
    else:
        assert happened == expected


def test_there_are_scenarios_and_each_opens_with_what_it_shows() -> None:
    assert SCENARIOS
    assert [path.name for path in SCENARIOS if not path.read_text(encoding="utf-8").startswith("# ")] == []


def test_a_line_that_nobody_understands_fails_with_its_number() -> None:
    with pytest.raises(ValueError, match=r"line 2: 'engines n0/g0'"):
        list(Scenario().play("# a typo\nengines n0/g0\n"))


@dataclass(slots=True)
class Scenario:
    """The situation so far. A test helper, so it may change in place."""

    policy: Policy = DUALPATH
    limits: PolicyLimits = field(default_factory=PolicyLimits)
    read_queues: dict[NodeId, int] = field(default_factory=dict)
    engines: dict[EngineId, EngineView] = field(default_factory=dict)
    groups: dict[GroupId, GroupView] = field(default_factory=dict)
    turns: dict[TurnId, WaitingTurn] = field(default_factory=dict)
    line: list[WaitingTurn] = field(default_factory=list)
    placed: dict[TurnId, EngineId] = field(default_factory=dict)
    rotation: int = 0

    def play(self, story: str) -> Iterator[str]:
        verbs: dict[str, Callable[[list[str], dict[str, str]], Iterator[str]]] = {
            "policy": self._policy,
            "limits": self._limits,
            "node": self._node,
            "engine": self._engine,
            "group": self._group,
            "turns": self._turns,
            "fetch": self._fetch,
            "spread": self._spread,
            "read": self._read,
            "end": self._end,
        }
        for number, line in enumerate(story.splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if words[0] not in verbs:
                raise ValueError(f"line {number}: {line!r} opens with none of {', '.join(verbs)}")
            values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            yield from verbs[words[0]]([word for word in words[1:] if "=" not in word], values)

    # the situation

    def _policy(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        self.policy = policy_named(names[0])
        yield from ()

    def _limits(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        self.limits = PolicyLimits(
            alpha_tokens=int(values.get("alpha", self.limits.alpha_tokens)),
            beta_tokens=int(values.get("beta", self.limits.beta_tokens)),
            high_mark_factor=float(values.get("high_mark", self.limits.high_mark_factor)),
            classify=Classify(values.get("classify", self.limits.classify)),
        )
        yield from ()

    def _node(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        self.read_queues[NodeId(names[0])] = int(values["read_queue"])
        yield from ()

    def _engine(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        engine_id = EngineId(names[0])
        self.engines[engine_id] = EngineView(
            engine_id=engine_id,
            node_id=NodeId(names[0].split("/")[0]),
            rank=len(self.engines),
            open_turns=int(values.get("turns", 0)),
            open_tokens=int(values.get("open", 0)),
            free_hbm_tokens=int(values.get("free_hbm", 0)),
        )
        yield from ()

    def _group(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        group_id = GroupId(names[0])
        self.groups[group_id] = GroupView(
            group_id, len(self.groups), int(values.get("open", 0)), int(values.get("queued", 0))
        )
        yield from ()

    def _turns(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        for name, shape in values.items():
            match = re.fullmatch(r"(?:(\d+)\+)?(\d+)(?:/(\d+))?", shape)
            assert match, f"turn {name} is {shape!r}, wanted [hit +] miss [/ max new tokens]"
            hit, miss, max_new = (int(number or 0) for number in match.groups())
            turn = WaitingTurn(TurnId(name), len(self.turns) + 1, hit, miss, max_new)
            self.turns[turn.turn_id] = turn
            self.line.append(turn)
        yield from ()

    # what happens

    def _fetch(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        engines = tuple(self.engines.values())
        if names[0].startswith("de"):
            decode = self.policy.assign_decode(DecodeSnapshot(self.line, engines, self.rotation), self.limits)
            yield f"high mark {decode.high_mark_tokens:.1f}"
            yield from self._place(decode.placements, decode.stop)
        else:
            snapshot = PrefillSnapshot(self.line, engines, self.read_queues, self.rotation)
            prefill = self.policy.assign_prefill(snapshot, self.limits)
            yield from self._place(prefill.placements, prefill.stop)

    def _place(self, placements: tuple[Placement, ...], stop: StopReason) -> Iterator[str]:
        for placement in placements:
            turn = self.turns[placement.turn_id]
            self._load(placement.engine_id, turn, sign=1)
            self.placed[turn.turn_id] = placement.engine_id
            yield f"{turn.turn_id} -> {placement.engine_id}   {_words(placement.reason)}"
        self.line = self.line[len(placements) :]
        self.rotation += 1
        yield f"stop {stop}" + (f", {len(self.line)} waiting" if self.line else "")

    def _load(self, engine_id: EngineId, turn: WaitingTurn, *, sign: int) -> None:
        engine = self.engines[engine_id]
        self.engines[engine_id] = engine._replace(
            open_turns=engine.open_turns + sign,
            open_tokens=engine.open_tokens + sign * turn.prompt_tokens,
            free_hbm_tokens=engine.free_hbm_tokens - sign * turn.total_tokens_max,
        )

    def _spread(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        placements = self.policy.spread_to_groups(self.line, tuple(self.groups.values()), rotation=self.rotation)
        for turn, placement in zip(self.line, placements, strict=True):
            group = self.groups[placement.group_id]
            self.groups[group.group_id] = group._replace(queued_tokens=group.queued_tokens + turn.prompt_tokens)
            yield f"{turn.turn_id} -> {group.group_id}   {_words(placement.reason)}, {placement.group_tokens} before"
        self.line = []
        self.rotation += 1

    def _read(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        turn = self.turns[TurnId(names[0])]
        nodes = {ReadSide.PE: NodeId(values["pe"]), ReadSide.DE: NodeId(values["de"])}
        decision = self.policy.choose_read_side(
            nodes[ReadSide.PE], nodes[ReadSide.DE], self.read_queues, hit_tokens=turn.hit_tokens, rotation=self.rotation
        )
        node = nodes[decision.side]
        self.read_queues[node] = self.read_queues.get(node, 0) + turn.hit_tokens
        self.rotation += 1
        queues = f"pe {decision.pe_queue_tokens}, de {decision.de_queue_tokens}"
        yield f"{turn.turn_id} reads on {decision.side} {node}   {_words(decision.reason)} ({queues})"

    def _end(self, names: list[str], values: dict[str, str]) -> Iterator[str]:
        turn = self.turns[TurnId(names[0])]
        self._load(self.placed.pop(turn.turn_id), turn, sign=-1)
        yield f"{turn.turn_id} ended"


def _words(reason: str) -> str:
    return str(reason).replace("_", " ")
