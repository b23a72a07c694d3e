"""The scheduler under faults: every property holds in some hundred seeds, every planted bug is noticed."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dualpath.model.errors import Rejected
from dualpath.simulator.chaos import suite
from dualpath.simulator.chaos.checker import LAWS, judge
from dualpath.simulator.chaos.history import Event, Promise, Run, Stored
from dualpath.simulator.chaos.mutants import MUTANTS, planted
from dualpath.simulator.chaos.story import story
from dualpath.simulator.chaos.suite import MUTANT_RUNS, Tally, hunt, quietly, run_suite
from dualpath.simulator.chaos.weather import Fault, weather_of
from dualpath.simulator.chaos.world import TURNS, run_seed

SEEDS = 300
FAULTY_MUTANT = "lifo_pop"


@pytest.fixture(autouse=True)
def _no_log_lines() -> Iterator[None]:
    with quietly():
        yield


@pytest.fixture(scope="module")
def tally() -> Tally:
    return run_suite(0, SEEDS)


@pytest.fixture(scope="module")
def faulty_seed() -> int:
    seed = hunt((FAULTY_MUTANT, MUTANT_RUNS)).seed
    assert seed is not None
    return seed


def test_every_property_holds_and_is_looked_at(tally: Tally) -> None:
    assert [line for line in tally.lines() if line["failures"] or not line["trials"]] == []
    assert tally.runs == SEEDS


def test_every_kind_of_fault_strikes(tally: Tally) -> None:
    assert sorted(set(Fault) - {fault for fault, _ in tally.hits}) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    caught = hunt((name, MUTANT_RUNS))

    assert caught.seed is not None, MUTANTS[name].about


def test_a_bug_is_gone_when_its_run_is_over(faulty_seed: int) -> None:
    with planted(FAULTY_MUTANT):
        with_bug = judge(run_seed(faulty_seed)).breaches
    without = judge(run_seed(faulty_seed)).breaches

    assert [name for name, _ in with_bug][:1] == ["order_is_kept"]
    assert without == []


def test_an_unknown_bug_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(Rejected, match="mutant 'none' is unknown, wanted one of drop_epoch_check"), planted("none"):
        pass


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_a_seed_has_one_history_whatever_python_hashes(hash_seed: str) -> None:
    code = (
        "from dualpath.simulator.chaos.world import run_seed\n"
        "print([run_seed(seed).trace_hash() for seed in range(0, 40, 4)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    here = [run_seed(seed).trace_hash() for seed in range(0, 40, 4)]

    assert there.stdout.splitlines()[-1] == str(here)


def test_a_suite_says_the_same_in_one_process_and_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "CHUNK", 10)

    assert run_suite(0, 20, jobs=1).lines() == run_suite(0, 20, jobs=2).lines()


def test_a_story_tells_the_weather_what_happened_and_what_broke(faulty_seed: int) -> None:
    with planted(FAULTY_MUTANT):
        run = run_seed(faulty_seed)
    lines = list(story(weather_of(faulty_seed, TURNS), run, judge(run)))

    assert lines[0].startswith(f"seed {faulty_seed}: ")
    assert any("client   k1 wants its turn" in line for line in lines)
    assert any(line.startswith("BROKEN order_is_kept (I4 R3)") for line in lines)


# the checker alone, on histories made by hand


def _run(*entries: tuple[object, ...], stored: Stored | None = None) -> Run:
    run = Run(0, calm=False, quiet=True, attempts_max=3, lease_s=1.0, clock_rate=1.0, hbm_tokens=10)
    run.promises["k1"] = Promise("k1", deadline_s=60.0, poison=False, patient=True)
    run.entries = [
        (0.0, Event.EPOCH, 1),
        (0.1, Event.SUBMITTED, "k1"),
        *entries,
    ]
    run.stored = {stored.turn_id: stored} if stored is not None else {}
    return run


def _first(run: Run) -> str:
    breaches = judge(run).breaches
    return breaches[0][0] if breaches else ""


WRITTEN = (0.2, Event.WRITTEN, 1, (), ("t1",), ())
ACCEPTED = (0.3, Event.ACCEPTED, "k1", "t1", 1, 1)
SENT = (0.4, Event.COMMIT_SENT, "d0", 1, "t1", 1, 7)
ENDED = (0.5, Event.WRITTEN, 1, (), (), ("t1",))
NEWS = (0.6, Event.NEWS, "k1", "t1", 1, "committed", "length", 7)
GOOD = Stored("t1", "k1", 1, "committed", 1, "length", 7, "")


def test_the_checker_finds_nothing_in_a_good_history() -> None:
    assert _first(_run(WRITTEN, ACCEPTED, SENT, ENDED, NEWS, stored=GOOD)) == ""


@pytest.mark.parametrize(
    ("broken", "entries", "stored"),
    [
        ("answers_are_durable", (ACCEPTED, WRITTEN, SENT, ENDED, NEWS), GOOD),
        ("answers_are_durable", (WRITTEN, ACCEPTED, SENT, NEWS, ENDED), GOOD),
        ("turns_are_kept", (WRITTEN, ACCEPTED, SENT, ENDED, NEWS), None),
        ("every_turn_ends", (WRITTEN, ACCEPTED, SENT), GOOD),
        ("one_result", (WRITTEN, ACCEPTED, SENT, ENDED, NEWS), GOOD._replace(mark=8)),
        ("one_result", (WRITTEN, ACCEPTED, SENT, ENDED, ENDED, NEWS), GOOD),
        ("deposed_is_powerless", (WRITTEN, ACCEPTED, (0.35, Event.EPOCH, 2), SENT, ENDED, NEWS), GOOD),
        ("ledger_adds_up", (WRITTEN, ACCEPTED, (0.35, Event.WRITTEN, 1, (("t1:1:x:d0", -1),), (), ())), GOOD),
        ("hbm_is_never_oversold", ((0.15, Event.WRITTEN, 1, (("t1:1:hbm_tokens:d0", 11),), (), ()), WRITTEN), GOOD),
        (
            "order_is_kept",
            (WRITTEN, (0.25, Event.PLACED, "prefill_fifo", ((1, "t1"), (2, "t2")), (("t2", "p0"),))),
            GOOD,
        ),
        ("damage_is_refused", ((0.05, Event.OPENED, 1, True), WRITTEN, ACCEPTED, SENT, ENDED, NEWS), GOOD),
    ],
)
def test_the_checker_names_what_is_broken(
    broken: str, entries: tuple[tuple[object, ...], ...], stored: Stored | None
) -> None:
    assert _first(_run(*entries, stored=stored)) == broken


def test_every_property_names_its_laws() -> None:
    assert all(laws for laws in LAWS.values())
