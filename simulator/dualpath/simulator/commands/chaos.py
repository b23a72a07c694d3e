"""`dualpath sim chaos`: the whole scheduler under faults, seed by seed, judged by a checker that knows only laws."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dualpath.cli import render
from dualpath.model.errors import Rejected
from dualpath.simulator.chaos.checker import judge
from dualpath.simulator.chaos.mutants import MUTANTS, planted
from dualpath.simulator.chaos.story import story
from dualpath.simulator.chaos.suite import MUTANT_RUNS, Caught, Tally, hunt_all, quietly, run_suite
from dualpath.simulator.chaos.weather import weather_of
from dualpath.simulator.chaos.world import TURNS, run_seed
from dualpath.simulator.commands import options

EPILOG = f"""Each seed is one run: the real scheduler with emulated leaders, clients, network and store, in virtual
time, while frames are lost, late, doubled and overtaken, schedulers and leaders crash and freeze, the store refuses,
restarts and loses its answers. A checker reads the history and says which property does not hold; docs/reliability.md
has them all.

  dualpath sim chaos --runs 20000 --jobs 2            # some minutes of CPU

  dualpath sim chaos --seed 4711 --story              # one run again, told line by line

  dualpath sim chaos --seed 3 --mutant lifo_pop --story     # what a bug would look like

  dualpath sim chaos --mutants                        # plant each bug; all must be noticed

Bugs to plant: {", ".join(MUTANTS)}.

Exit codes: 0 every property holds (with --mutants: every bug was noticed), 1 not so."""

DEFAULT_RUNS = 2000
Runs = Annotated[
    int | None, typer.Option(help=f"seeds; default {DEFAULT_RUNS}, with --mutants at most {MUTANT_RUNS} per bug", min=1)
]
First = Annotated[int, typer.Option(help="the first seed", min=0)]
Seed = Annotated[int | None, typer.Option(help="only this seed", min=0)]
Story = Annotated[bool, typer.Option("--story", help="tell what happened, line by line; needs --seed")]
Name = Annotated[str, typer.Option("--mutant", help="plant this bug in the scheduler")]
Mutants = Annotated[bool, typer.Option("--mutants", help="plant each bug in turn: the suite must notice all")]
Turns = Annotated[int, typer.Option(help="turns of a run at most; other numbers are other runs", min=2, max=64)]
Out = Annotated[Path | None, typer.Option(help="write one JSON line per property (or bug)")]
Json = Annotated[bool, typer.Option("--json", help="print those lines instead of a table")]


def chaos(
    runs: Runs = None,
    first: First = 0,
    seed: Seed = None,
    tell: Story = False,
    mutant: Name = "",
    mutants: Mutants = False,
    turns: Turns = TURNS,
    jobs: options.Jobs = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    if tell and seed is None:
        raise Rejected("a story is told of one run, wanted --seed with it", field="story")
    if seed is not None and tell:
        _tell(seed, turns, mutant)
    elif mutants:
        _hunt(runs or MUTANT_RUNS, options.jobs_of(jobs), out, as_json=as_json)
    else:
        count = 1 if seed is not None else runs or DEFAULT_RUNS
        _suite(first if seed is None else seed, count, turns, mutant, options.jobs_of(jobs), out, as_json=as_json)


def _tell(seed: int, turns: int, mutant: str) -> None:
    with quietly(), planted(mutant):
        run = run_seed(seed, turns)
    verdict = judge(run)
    for line in story(weather_of(seed, turns), run, verdict):
        print(line)
    if verdict.breaches:
        raise typer.Exit(1)


def _suite(first: int, runs: int, turns: int, mutant: str, jobs: int, out: Path | None, *, as_json: bool) -> None:
    began_s = time.monotonic()
    with render.progress_bar("runs", total=runs, quiet=runs <= 1) as told:
        tally = run_suite(first, runs, jobs=jobs, mutant=mutant, turns=turns, told=told)
    took_s = time.monotonic() - began_s
    summary = {
        "summary": "sim chaos",
        "runs": tally.runs,
        "first_seed": first,
        "turns": tally.turns,
        "failures": tally.failures,
        "pairs": len(tally.hits),  # of a fault and the phase it hit
        "faults": sum(tally.hits.values()),
        "mutant": mutant or None,
        "jobs": jobs,
        "wall_s": round(took_s, 1),
    }
    _write([*tally.lines(), summary], out, as_json=as_json)
    if not as_json:
        _print_rows(tally, first, turns, mutant)
        pairs = f"{sum(tally.hits.values())} faults in {len(tally.hits)} pairs of fault and phase"
        processes = f"{jobs} {'process' if jobs == 1 else 'processes'}"
        print(f"{tally.runs} runs, {tally.turns} turns, {pairs}; {took_s:.1f} s, {processes}")
    if tally.failures:
        raise typer.Exit(1)


def _print_rows(tally: Tally, first: int, turns: int, mutant: str) -> None:
    print(f"{'property':26}{'laws':>13}{'trials':>9}{'failures':>10}{'worst':>9}")
    for line in tally.lines():
        worst = "" if line["worst"] is None else f"{line['worst']:.3f} s"
        print(f"{line['property']:26}{line['laws']:>13}{line['trials']:>9}{line['failures']:>10}{worst:>9}")
    more = (f" --turns {turns}" if turns != TURNS else "") + (f" --mutant {mutant}" if mutant else "")
    for name, row in tally.rows.items():
        for seed, text in row.breaches[:1]:
            print(f"\n{name} does not hold, seed {seed}: {text}")
            print(f"  dualpath sim chaos --seed {seed}{more} --story")


def _hunt(runs: int, jobs: int, out: Path | None, *, as_json: bool) -> None:
    caught: list[Caught] = []
    with render.progress_bar("bugs planted", total=len(MUTANTS), quiet=False) as told:
        for found in hunt_all(tuple(MUTANTS), runs=runs, jobs=jobs):
            caught.append(found)
            told(len(caught), len(MUTANTS))
    _write([found.line() for found in caught], out, as_json=as_json)
    missed = [found.name for found in caught if found.seed is None]
    if not as_json:
        for found in caught:
            how = "NOT NOTICED" if found.seed is None else f"seed {found.seed}: {found.broken}"
            print(f"{found.name:22}{how:34}{MUTANTS[found.name].about}")
        print(f"{len(caught) - len(missed)} of {len(caught)} bugs noticed within {runs} seeds each")
    if missed:
        raise typer.Exit(1)


def _write(lines: Iterable[Mapping[str, Any]], out: Path | None, *, as_json: bool) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if out is not None:
        out.write_text(text)
    if as_json:
        sys.stdout.write(text)
