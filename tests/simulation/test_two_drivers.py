"""The fast driver decides what the real scheduler decides, turn for turn; runs are laws unto their seeds."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.simulator.machine.shape import Shape
from dualpath.simulator.observe import Recorder
from dualpath.simulator.profiles.profile import load_profile
from dualpath.simulator.scenario import SYSTEMS, Scenario, simulate, with_modes
from dualpath.simulator.workload.sessions import Session


def _scenario(chance: random.Random) -> Scenario:
    profile = load_profile("ds-660b")
    system = SYSTEMS[chance.choice(("dualpath", "basic", "layerwise", "alternating"))]
    nodes = chance.randint(1, 2)
    sessions = [
        Session(
            [chance.randint(1, 9_000) for _ in range(turns)],
            [chance.randint(1, 40) for _ in range(turns)],
            [chance.choice((0.0, 0.5)) for _ in range(turns)],
        )
        for turns in (chance.randint(1, 6) for _ in range(chance.randint(1, 12)))
    ]
    return Scenario(
        system=with_modes(system, system.name, event_driven=chance.random() < 0.5),
        shape=Shape(nodes, chance.randint(1, 2), engines_per_node=chance.randint(1, 3)),
        costs=replace(profile.costs, hbm_tokens=100_000, buffer_tokens=120_000),
        limits=PolicyLimits(
            alpha_tokens=chance.choice((0, 5_000, 100_000)), beta_tokens=chance.choice((0, 20_000, 200_000))
        ),
        sessions=sessions,
        starts_s=[chance.choice((0.0, chance.random() * 3)) for _ in sessions],
    )


def _assignments(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, *, with_service: bool
) -> Sequence[tuple[object, ...]]:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        Recorder,
        "seen",
        lambda self, turn: seen.append(
            (turn.session, turn.index, turn.pe, turn.de, turn.side, turn.planned_at_s, turn.prefilled_at_s)
        ),
    )
    simulate(scenario, with_service=with_service)
    return sorted(seen)


@pytest.mark.parametrize("seed", range(50))
def test_both_drivers_make_the_same_assignments_at_the_same_times(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = _scenario(random.Random(seed))

    direct = _assignments(scenario, monkeypatch, with_service=False)

    assert direct == _assignments(scenario, monkeypatch, with_service=True)
    assert len(direct) == sum(session.turns for session in scenario.sessions)


@pytest.mark.parametrize("seed", range(10))
def test_a_nic_reads_the_hit_tokens_asked_for_and_the_same_seed_gives_the_same_run(seed: int) -> None:
    scenario = _scenario(random.Random(seed))

    summary = simulate(scenario)

    assert sum(summary.nic_read_tokens) == summary.hit_tokens
    assert summary == simulate(scenario)
