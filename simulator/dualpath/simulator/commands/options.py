"""Options that the `sim` commands share, and what all of them show while they run."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dualpath.cli import render
from dualpath.model.errors import Rejected
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.simulator.machine.shape import Modes
from dualpath.simulator.runs.case import ARRIVAL_SEED, Changes, Workload
from dualpath.simulator.runs.pool import Told
from dualpath.simulator.workload.generator import PAPER_SEED

Model = Annotated[str, typer.Option("--profile", "-p", help="ds-660b, ds-27b, qwen-32b or a TOML file of yours")]
ShapeOption = Annotated[str | None, typer.Option("--shape", help="nodes, like 2P4D; default: the profile's")]
Trace = Annotated[Path | None, typer.Option(help="recorded sessions; default: the paper's sets are generated")]
TraceScale = Annotated[float, typer.Option(help="multiply the trace's lengths")]
MaxLen = Annotated[int | None, typer.Option("--max-len", help="MaxLen in tokens; default 65536, a trace is not cut")]
Sessions = Annotated[int | None, typer.Option(help="how many; default 512, or the whole trace", min=1)]
AppendScale = Annotated[float, typer.Option(help="multiply appended tokens before the cut")]
GenScale = Annotated[float, typer.Option(help="multiply generated tokens before the cut")]
Aps = Annotated[float, typer.Option(help="sessions arriving per second (Poisson); 0: all at once")]
AsRecorded = Annotated[bool, typer.Option("--as-recorded", help="start sessions when the trace did")]
Pauses = Annotated[bool, typer.Option("--pauses/--no-pauses", help="keep the trace's pauses between turns")]
Until = Annotated[float, typer.Option("--until-s", help="stop then, finished or not; 0: when all sessions ended")]
WarmUp = Annotated[float, typer.Option("--warm-up-s", help="turns submitted before do not count for latencies")]
Seed = Annotated[int, typer.Option(help="of the generated sessions")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="change a cost, limit or mode: alpha_s=2, beta_tokens=300000, quota_s=0.2; repeatable"),
]
SlowNic = Annotated[list[str] | None, typer.Option(help="NODE=FACTOR: a slow storage NIC, PE nodes first; repeatable")]
SlowGpu = Annotated[list[str] | None, typer.Option(help="NODE=FACTOR: slow engines; repeatable")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="processes; 0: one per core", min=0)]
Keep = Annotated[Path | None, typer.Option(help="folder of results: what is there is not run again")]
Out = Annotated[Path | None, typer.Option(help="write the figures as JSON")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]

DEFAULT_MAX_LEN = 65_536
DEFAULT_SESSIONS = 512
LINE_EVERY_S = 30.0  # progress on something that is no terminal


def workload_of(
    *,
    trace: Path | None = None,
    trace_scale: float = 1.0,
    max_len: int | None = None,
    sessions: int | None = None,
    append_scale: float = 1.0,
    gen_scale: float = 1.0,
    aps: float = 0.0,
    as_recorded: bool = False,
    pauses: bool = True,
    until_s: float = 0.0,
    warm_up_s: float = 0.0,
    seed: int = PAPER_SEED,
) -> Workload:
    """The options as a workload; raises Rejected naming the option that is out of range."""
    for name, found in (("append_scale", append_scale), ("gen_scale", gen_scale), ("trace_scale", trace_scale)):
        if not 0 < found < 1e6:
            raise Rejected(f"{name} is {found}, wanted more than 0", field=name)
    for name, found in (("aps", aps), ("until_s", until_s), ("warm_up_s", warm_up_s)):
        if not 0 <= found < 1e12:
            raise Rejected(f"{name} is {found}, wanted at least 0", field=name)
    if max_len is not None and max_len < 2:
        raise Rejected(f"max_len is {max_len}, wanted at least 2 tokens", field="max_len")
    if as_recorded and trace is None:
        raise Rejected("as_recorded needs a trace", field="as_recorded")
    count = sessions or (0 if trace is not None or (aps and until_s) else DEFAULT_SESSIONS)
    return Workload(
        tokens_max=max_len if max_len is not None else (0 if trace is not None else DEFAULT_MAX_LEN),
        sessions=count,
        append_scale=append_scale,
        gen_scale=gen_scale,
        seed=seed,
        trace=str(trace) if trace is not None else "",
        trace_scale=trace_scale,
        pauses=pauses,
        as_recorded=as_recorded,
        aps=aps,
        arrival_seed=ARRIVAL_SEED,
        until_s=until_s,
        warm_up_s=warm_up_s,
    )


LIMIT_NAMES = ("alpha_s", *(entry.name for entry in fields(PolicyLimits)))
MODE_NAMES = tuple(entry.name for entry in fields(Modes))


class CaseChanges(TypedDict):
    """Keyword arguments of a Case."""

    costs: Changes
    limits: Changes
    modes: Changes


def changes_of(settings: Sequence[str] | None) -> CaseChanges:
    """`--set name=value` sorted into costs, limits and modes."""
    made: dict[str, list[tuple[str, float | str]]] = {"costs": [], "limits": [], "modes": []}
    for setting in settings or ():
        name, equals, text = setting.partition("=")
        if not equals:
            raise Rejected(f"--set is {setting!r}, wanted NAME=VALUE", field="set")
        kind = "limits" if name in LIMIT_NAMES else "modes" if name in MODE_NAMES else "costs"
        made[kind].append((name, _value(text)))
    return CaseChanges(costs=tuple(made["costs"]), limits=tuple(made["limits"]), modes=tuple(made["modes"]))


def slow_of(pairs: Sequence[str] | None, option: str) -> tuple[tuple[int, float], ...]:
    """NODE=FACTOR pairs."""
    made = []
    for pair in pairs or ():
        node, _, factor = pair.partition("=")
        try:
            made.append((int(node), float(factor)))
        except ValueError as error:
            raise Rejected(f"{option} is {pair!r}, wanted NODE=FACTOR such as 0=2", field=option) from error
    return tuple(made)


def _value(text: str) -> float | str:
    try:
        return float({"true": "1", "false": "0"}.get(text.lower(), text))
    except ValueError:
        return text


def jobs_of(jobs: int) -> int:
    """How many processes 0 stands for."""
    return jobs or len(os.sched_getaffinity(0))


@contextmanager
def watching(label: str, *, quiet: bool) -> Iterator[Told | None]:
    """Shows the progress of many runs on stderr: a bar on a terminal, else a line now and then, nothing when quiet."""
    if quiet:
        yield None
        return
    if not render.errors.is_terminal:
        yield _Lines(label)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs, {task.fields[turns]:,} turns simulated"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[title]}"),
    )
    with Progress(*columns, console=render.errors, transient=True) as progress:
        task = progress.add_task(label, total=None, turns=0, title="")

        def told(ended: int, total: int, turns: int, title: str) -> None:
            progress.update(task, completed=ended, total=total, turns=turns)
            if title:
                progress.update(task, title=title)

        yield told


class _Lines:
    """Progress for a log."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began_s = self._last_s = time.monotonic()

    def __call__(self, ended: int, total: int, turns: int, title: str) -> None:
        now = time.monotonic()
        if ended < total and now - self._last_s < LINE_EVERY_S:
            return
        self._last_s = now
        print(
            f"{self._label}: {ended} of {total} runs, {turns:,} turns simulated, {now - self._began_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def keeping(label: str, keep: Path | None, *, quiet: bool) -> Iterator[Told | None]:
    """`watching` of runs that are kept in a folder: after Ctrl-C it says what is left of them."""
    try:
        with watching(label, quiet=quiet) as told:
            yield told
    except KeyboardInterrupt:
        if keep is None:
            said = "with --keep DIR the runs that have ended are kept, and the same command goes on"
        else:
            said = f"the runs that have ended are kept in {keep}, the same command goes on"
        print(f"interrupted; {said}", file=sys.stderr)
        raise


def tell(body: Mapping[str, Any], out: Path | None, *, as_json: bool) -> None:
    """The figures as JSON: to the file that was asked for, and to stdout."""
    if out is not None:
        out.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    if as_json:
        render.print_json(body)
