"""The cases, one after the other: each with a scheduler, a Redis and a load generator of its own, started anew.

python -m benchmarks.control --out control.json          everything; about six minutes
python -m benchmarks.control --part open --rate 2400     one part of it
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.control import decisions, peers, report
from benchmarks.control.load import REPORT_GAP_S, SHAPES, Load
from benchmarks.control.processes import CELL, Scheduler

PARTS = ("open", "closed", "decisions", "peers")
RATES = (2400, 8000)
MARGIN_S = 180.0  # of the generator over its own times: join, prepare, drain, count
LOG_LINES_SHOWN = 10
BUILD = Path("build")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    parts: tuple[str, ...]
    rates: tuple[int, ...]
    engines: tuple[int, ...]
    open_engines: int
    seconds: float
    warm_up_s: float
    peer_seconds: float
    rounds: int
    blocks: int
    outstanding: int
    client_streams: int
    report_gap_s: float
    scheduler_arguments: tuple[str, ...]
    folder: Path


def main() -> int:
    arguments = _parser().parse_args()
    options = Options(
        parts=tuple(arguments.part or PARTS),
        rates=tuple(arguments.rate or RATES),
        engines=tuple(arguments.engines or SHAPES),
        open_engines=arguments.open_engines,
        seconds=arguments.seconds,
        warm_up_s=arguments.warm_up,
        peer_seconds=arguments.peer_seconds,
        rounds=arguments.rounds,
        blocks=arguments.blocks,
        outstanding=arguments.outstanding,
        client_streams=arguments.client_streams,
        report_gap_s=arguments.report_gap_ms / 1000,
        scheduler_arguments=tuple(arguments.scheduler_argument or ()),
        folder=arguments.folder,
    )
    found = run(options, lambda text: print(text, file=sys.stderr, flush=True))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(report.table(found))
    errors = found["errors"]
    return 1 if errors else 0


def run(options: Options, say: Say) -> dict[str, object]:
    """All parts asked for."""
    open_runs: dict[str, dict[str, object]] = {}
    closed_runs: dict[str, dict[str, object]] = {}
    others: dict[str, dict[str, object]] = {}
    if "open" in options.parts:
        for rate in options.rates:
            open_runs[str(rate)] = _run_load(f"open {rate}/s", options, say, engines=options.open_engines, rate=rate)
    if "closed" in options.parts:
        for engines in options.engines:
            closed_runs[str(engines)] = _run_load(f"closed {engines} engines", options, say, engines=engines, rate=0)
    decided = decisions.measure(say, rounds=options.rounds) if "decisions" in options.parts else {}
    if "peers" in options.parts:
        others = peers.measure(options.folder / "peers", say, blocks=options.blocks, seconds=options.peer_seconds)
    return report.assemble(open_runs, closed_runs, decided, others, blocks=options.blocks)


def _run_load(name: str, options: Options, say: Say, *, engines: int, rate: float) -> dict[str, object]:
    folder = options.folder / name.replace("/", "-").replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    say(f"{name}: {options.warm_up_s + options.seconds:g} s")
    with Scheduler(folder, options.scheduler_arguments) as scheduler:
        load = Load(
            host=scheduler.host,
            port=scheduler.port,
            cell=CELL,
            scheduler_pid=scheduler.pid,
            redis_pid=scheduler.redis_pid,
            engines=engines,
            rate=rate,
            outstanding=options.outstanding,
            seconds=options.seconds,
            warm_up_s=options.warm_up_s,
            blocks=options.blocks,
            client_streams=options.client_streams,
            report_gap_s=options.report_gap_s,
        )
        found = _generate(load)
    log = scheduler.log_tail(LOG_LINES_SHOWN)
    shutil.rmtree(folder, ignore_errors=True)
    errors = found["errors"]
    assert isinstance(errors, list)
    say(
        f"{name}: {found.get('achieved')} turns/s, scheduler {found.get('scheduler_cpu_us_per_turn')} us,"
        f" redis {found.get('redis_cpu_us_per_turn')} us, {len(errors)} errors"
    )
    if errors:
        say("\n".join([*errors[:LOG_LINES_SHOWN], "the scheduler's log ends with:", log]))
    return found


def _generate(load: Load) -> dict[str, object]:
    """Run the generator in its own process; one that fails is an error of the run."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.control.generator"],
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        timeout=load.warm_up_s + load.seconds + load.drain_s + MARGIN_S,
    )
    if done.returncode:
        return {"errors": [f"the generator ended with {done.returncode}: {done.stderr.strip()[-1000:]}"]}
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part (repeatable)")
    parser.add_argument("--rate", action="append", type=int, help="turns per second of an open loop (repeatable)")
    parser.add_argument("--engines", action="append", type=int, choices=tuple(SHAPES), help="closed loop (repeatable)")
    parser.add_argument("--open-engines", type=int, choices=tuple(SHAPES), default=max(SHAPES), help="open loop")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, per case")
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds before")
    parser.add_argument("--peer-seconds", type=float, default=10.0, help="measured, per peer")
    parser.add_argument("--rounds", type=int, default=300, help="of the decisions")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of 64 tokens in the context of a turn")
    parser.add_argument("--outstanding", type=int, default=2048, help="turns under way in a closed loop")
    parser.add_argument("--client-streams", type=int, default=4)
    parser.add_argument("--report-gap-ms", type=float, default=1000 * REPORT_GAP_S, help="least, between reports")
    parser.add_argument("--scheduler-argument", action="append", help="such as =--beta-tokens=100000 (repeatable)")
    parser.add_argument("--folder", type=Path, default=BUILD / "bench-control", help="scratch space on a real disk")
    return parser
