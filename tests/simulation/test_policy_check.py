"""`dualpath policy check`: good policies pass, each planted fault is told by its law, with a small situation."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dualpath.cli.main import EXIT_REJECTED, exit_code
from dualpath.model.errors import Rejected
from dualpath.scheduler.policy.registry import POLICIES
from dualpath.simulator.laws.cases import Function
from dualpath.simulator.laws.check import Checked, check_policy
from dualpath.simulator.laws.laws import LAWS
from dualpath.simulator.policy_command import ABOUT, register
from dualpath.simulator.policy_file import load_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "policies" / "least_loaded.py"
HEAD = """
import random
from dataclasses import replace
from dualpath.model.ids import EngineId, GroupId
from dualpath.scheduler.policy.decisions import *
from dualpath.scheduler.policy.registry import BASIC, DUALPATH
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: the function, its body, the one law to be told, and at most so many lines of situation."""

    law: str
    function: str
    body: str
    lines_max: int


PREFILL, DECODE = "assign_prefill(snapshot, limits)", "assign_decode(snapshot, limits)"
SPREAD = "spread_to_groups(turns, groups, *, rotation=0)"
READ = "choose_read_side(pe, de, queues, *, hit_tokens, rotation=0)"

PLANTED = {
    "divides by the number of turns": Planted("returns", PREFILL, """
        share = 100 / len(snapshot.waiting)
        return DUALPATH.assign_prefill(snapshot, limits)""", 2),
    "never ends": Planted("returns", SPREAD, """
        while turns: pass
        return DUALPATH.spread_to_groups(turns, groups, rotation=rotation)""", 99),
    "answers with a list": Planted("right_types", SPREAD, """
        return list(DUALPATH.spread_to_groups(turns, groups, rotation=rotation))""", 1),
    "names the side with a string": Planted("right_types", READ, """
        return DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens)._replace(side="PE")""", 2),
    "rolls a die": Planted("same_answer_again", READ, """
        return DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens, rotation=random.randrange(2))""", 3),
    "rolls a die of its own": Planted("same_answer_again", READ, """
        chance = random.Random().randrange(2)
        return DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens, rotation=chance)""", 5),
    "counts its calls": Planted("same_answer_again", DECODE, """
        assign_decode.calls = getattr(assign_decode, "calls", 0) + 1
        return BASIC.assign_decode(replace(snapshot, rotation=assign_decode.calls), limits)""", 5),
    "books its reads in the queues it was shown": Planted("changes_nothing", READ, """
        decision = DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens, rotation=rotation)
        queues[pe] = queues.get(pe, 0) + hit_tokens
        return decision""", 3),
    "adds lists": Planted("takes_any_sequence", PREFILL, """
        return DUALPATH.assign_prefill(replace(snapshot, waiting=snapshot.waiting + []), limits)""", 2),
    "gives ties to the first in the list": Planted("any_order", DECODE, """
        engines = tuple(e._replace(rank=at) for at, e in enumerate(snapshot.engines))
        return DUALPATH.assign_decode(replace(snapshot, engines=engines), limits)""", 5),
    "takes short turns first": Planted("in_order", PREFILL, """
        line = sorted(snapshot.waiting, key=lambda turn: turn.prompt_tokens)
        return DUALPATH.assign_prefill(replace(snapshot, waiting=line), limits)""", 4),
    "places the head again": Planted("no_turn_twice", DECODE, """
        decision = DUALPATH.assign_decode(replace(snapshot, waiting=list(snapshot.waiting)[:1]), limits)
        again = [p._replace(open_tokens=p.open_tokens + snapshot.waiting[0].prompt_tokens, open_turns=p.open_turns + 1,
                            free_hbm_tokens=p.free_hbm_tokens - snapshot.waiting[0].total_tokens_max)
                 for p in decision.placements if p.free_hbm_tokens >= 2 * snapshot.waiting[0].total_tokens_max]
        waiting = len(snapshot.waiting) - len(decision.placements)
        stop = StopReason.NO_HBM if waiting and snapshot.engines else decision.stop
        return replace(decision, placements=decision.placements + tuple(again), waiting=waiting, stop=stop)""", 4),
    "knows an engine of old": Planted("known_places", PREFILL, """
        decision = DUALPATH.assign_prefill(snapshot, limits)
        moved = tuple(p._replace(engine_id=EngineId("n9/g0")) for p in decision.placements)
        return replace(decision, placements=moved)""", 4),
    "oversells HBM by a token": Planted("within_free_hbm", DECODE, """
        more = tuple(e._replace(free_hbm_tokens=e.free_hbm_tokens + 1) for e in snapshot.engines)
        decision = DUALPATH.assign_decode(replace(snapshot, engines=more), limits)
        shown = tuple(p._replace(free_hbm_tokens=p.free_hbm_tokens - 1) for p in decision.placements)
        return replace(decision, placements=shown)""", 4),
    "spreads one turn at a time": Planted("every_turn_or_none", SPREAD, """
        return DUALPATH.spread_to_groups(turns[:1], groups, rotation=rotation)""", 3),
    "keeps an engine free": Planted("progress", PREFILL, """
        if len(snapshot.engines) < 2:
            left = len(snapshot.waiting)
            stop = StopReason.NO_ENGINES if not snapshot.engines else StopReason.ALL_OVERLOADED
            return PrefillDecision((), stop if left or not snapshot.engines else StopReason.EMPTY_QUEUE, left)
        return DUALPATH.assign_prefill(snapshot, limits)""", 4),
    "holds back DEs that would be full": Planted("progress", DECODE, """
        less = tuple(e._replace(free_hbm_tokens=e.free_hbm_tokens - 1) for e in snapshot.engines)
        decision = DUALPATH.assign_decode(replace(snapshot, engines=less), limits)
        shown = tuple(p._replace(free_hbm_tokens=p.free_hbm_tokens + 1) for p in decision.placements)
        return replace(decision, placements=shown)""", 4),
    "loses count of those who wait": Planted("honest_stop", PREFILL, """
        decision = DUALPATH.assign_prefill(snapshot, limits)
        return replace(decision, waiting=0)""", 4),
    "shows the load of the fetch": Planted("true_numbers", PREFILL, """
        decision = DUALPATH.assign_prefill(snapshot, limits)
        found = {e.engine_id: e for e in snapshot.engines}
        return replace(decision, placements=tuple(
            p._replace(open_tokens=found[p.engine_id].open_tokens) for p in decision.placements))""", 4),
    "swaps the queues": Planted("true_numbers", READ, """
        d = DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens, rotation=rotation)
        return d._replace(pe_queue_tokens=d.de_queue_tokens, de_queue_tokens=d.pe_queue_tokens)""", 4),
}  # fmt: skip


# ---- the laws


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_of_ours_keeps_every_law(name: str) -> None:
    checked = check_policy(POLICIES[name], examples=60, seed=0)

    assert checked.breaches == ()
    assert checked.functions == tuple(Function)
    assert {law.name for _, law in checked.laws} == {law.name for law in LAWS}


def test_the_example_keeps_every_law() -> None:
    checked = check_policy(load_policy(EXAMPLE), examples=200, seed=0)

    assert checked.breaches == ()
    assert checked.functions == (Function.ASSIGN_PREFILL,)


@pytest.mark.parametrize("planted", PLANTED.values(), ids=list(PLANTED))
def test_a_planted_fault_is_told_by_its_law_and_a_small_situation(planted: Planted, tmp_path: Path) -> None:
    checked = _checked(_written(tmp_path, planted))

    assert [breach.law.name for breach in checked.breaches] == [planted.law]
    (breach,) = checked.breaches
    assert planted.function.startswith(breach.function)
    assert len(breach.situation) <= planted.lines_max, breach.situation
    assert breach.found
    assert breach.answer


def test_every_law_has_a_planted_fault() -> None:
    assert {planted.law for planted in PLANTED.values()} == {law.name for law in LAWS}


def test_a_law_that_another_breach_explains_is_not_told(tmp_path: Path) -> None:
    """pop() changes the line, and fails on one that can only be read: one fault, one breach."""
    body = """
        head = [snapshot.waiting.pop(0)] if snapshot.waiting else []
        decision = DUALPATH.assign_prefill(replace(snapshot, waiting=head + list(snapshot.waiting)), limits)
        return decision"""

    checked = _checked(_written(tmp_path, Planted("", PREFILL, body, 0)))

    assert [breach.law.name for breach in checked.breaches] == ["changes_nothing"]
    assert "the line" in checked.breaches[0].found


def test_shrinking_goes_down_to_the_two_turns_that_matter(tmp_path: Path) -> None:
    (breach,) = _checked(_written(tmp_path, PLANTED["takes short turns first"])).breaches

    assert breach.situation == (
        "limits alpha=0 beta=0",
        "engine n0/g0 open=0 turns=0",
        "turns t1=2 t2=1",
        "fetch pe-group-0",
    )
    assert breach.answer == ("t2 -> n0/g0   short queue", "stop all_overloaded, 1 waiting")
    assert breach.found == "placed t2, wanted t1"


def test_an_exception_is_told_with_the_line_that_raised(tmp_path: Path) -> None:
    file = _written(tmp_path, PLANTED["divides by the number of turns"])

    (breach,) = _checked(file).breaches

    assert breach.found == "it raised ZeroDivisionError: division by zero"
    assert f"{file}, line " in breach.answer[1]
    assert breach.answer[2].strip() == "share = 100 / len(snapshot.waiting)"


# ---- the command


def test_a_good_file_exits_with_0(tmp_path: Path) -> None:
    result = _run("check", str(EXAMPLE), "--examples", "30")

    assert result.exit_code == 0
    assert "policy least_loaded: no law is broken (30 situations per function, seed 0)" in result.stdout


def test_a_broken_law_exits_with_1_and_shows_the_situation(tmp_path: Path) -> None:
    result = _run("check", str(_written(tmp_path, PLANTED["takes short turns first"])), "--examples", "100")

    assert result.exit_code == 1
    assert "assign_prefill breaks in_order" in result.stdout
    assert "    turns t1=2 t2=1\n" in result.stdout
    assert "policy mine: 1 law is broken" in result.stdout


def test_the_same_seed_gives_the_same_report_and_the_json_has_this_shape(tmp_path: Path) -> None:
    file = _written(tmp_path, PLANTED["oversells HBM by a token"])
    first, again = (_run("check", str(file), "--json", "--seed", "7", "--examples", "100") for _ in range(2))

    assert first.stdout == again.stdout
    assert first.exit_code == 1
    report = json.loads(first.stdout)
    assert set(report) == {"policy", "ok", "examples", "seed", "laws", "breaches"}
    assert (report["policy"], report["ok"], report["examples"], report["seed"]) == ("mine", False, 100, 7)
    assert set(report["laws"][0]) == {"function", "law", "sentence", "holds"}
    assert [law["law"] for law in report["laws"] if not law["holds"]] == ["within_free_hbm"]
    (breach,) = report["breaches"]
    assert set(breach) == {"function", "law", "found", "situation", "answer"}
    assert breach["function"] == "assign_decode"


def test_a_policy_that_prints_does_not_spoil_the_json(tmp_path: Path) -> None:
    body = """
        print("hello")
        return DUALPATH.choose_read_side(pe, de, queues, hit_tokens=hit_tokens, rotation=rotation)"""

    result = _run("check", str(_written(tmp_path, Planted("", READ, body, 0))), "--json", "--examples", "5")

    assert json.loads(result.stdout)["ok"] is True


def test_nothing_is_left_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _written(tmp_path, PLANTED["spreads one turn at a time"])
    monkeypatch.chdir(tmp_path)

    _run("check", str(file), "--examples", "20")

    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def assign_prefill(snapshot, limits)\n    pass\n", "line 1: SyntaxError"),
        ("def assign(snapshot, limits): ...\n", "defines assign; wanted at least one of assign_prefill"),
        ("def assign_prefill(snapshot): ...\n", "wanted assign_prefill(snapshot, limits)"),
        ("def choose_read_side(pe, de, queues, hit_tokens): ...\n", "wanted choose_read_side(pe_node, de_node"),
        ("1 / 0\n", "line 1: ZeroDivisionError"),
        (None, "is not there"),
    ],
)
def test_a_file_that_is_no_policy_is_rejected(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)

    result = _run("check", str(file))

    assert isinstance(result.exception, Rejected)
    assert result.exception.field == "policy"
    assert said in str(result.exception)
    assert exit_code(result.exception) == EXIT_REJECTED


def test_an_unknown_name_is_rejected_with_the_names_there_are() -> None:
    result = _run("check", "fastest")

    assert isinstance(result.exception, Rejected)
    assert "none of basic, dualpath, roundrobin" in str(result.exception)


def test_the_list_has_each_policy_of_ours_with_one_line() -> None:
    lines = _run("list").stdout.splitlines()

    assert [line.split()[0] for line in lines] == sorted(POLICIES) == sorted(ABOUT)
    assert [entry["name"] for entry in json.loads(_run("list", "--json").stdout)["policies"]] == sorted(POLICIES)


def _run(*arguments: str) -> Result:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["policy", *arguments])


def _written(folder: Path, planted: Planted) -> Path:
    file = folder / "mine.py"
    body = textwrap.indent(textwrap.dedent(planted.body).strip("\n"), "    ")
    file.write_text(f"{HEAD}\n\ndef {planted.function}:\n{body}\n")
    return file


def _checked(file: Path) -> Checked:
    return check_policy(load_policy(file), examples=100, seed=0)
