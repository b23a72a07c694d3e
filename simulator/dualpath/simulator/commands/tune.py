"""`dualpath sim tune`: search the scheduler's knobs and tell how flat the optimum is."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dualpath.cli import render
from dualpath.simulator.commands import options
from dualpath.simulator.profiles.profile import load_profile
from dualpath.simulator.runs.case import Case
from dualpath.simulator.workload.generator import PAPER_SEED

EPILOG = """Several machines on one study, and again after Ctrl-C:

  dualpath sim tune -p ds-660b --sessions 128 --trials 100 --storage sqlite:///tune.db

  dualpath sim tune -p ds-660b --aps 0.4 --trials 200 --storage postgresql://user@host/database --study mine

The same command joins the study: it ends when the study has that many trials. Any URL of Optuna's SQL storage goes;
a database server needs its Python driver installed.
"""

SHOWN_PERCENT = 0.1  # a smaller gain is not worth a line

Storage = Annotated[str, typer.Option(help="SQL URL of the study, sqlite:///tune.db; default: in memory")]
Study = Annotated[str, typer.Option(help="name of the study; default: made of what is tuned")]
Trials = Annotated[int, typer.Option(help="trials that the study has in the end, of all machines", min=1)]
Knobs = Annotated[str, typer.Option(help="names with commas; default: all")]
Range = Annotated[list[str] | None, typer.Option("--range", help="NAME=LOW:HIGH, default in it; repeatable")]
Points = Annotated[int, typer.Option(help="values of a knob's sweep around the best", min=2)]
Plot = Annotated[Path | None, typer.Option(help="draw the sweeps as PNG")]
SearchSeed = Annotated[int, typer.Option("--seed", help="of the search")]
SessionSeed = Annotated[int, typer.Option("--session-seed", help="of the generated sessions")]
System = Annotated[str, typer.Option(help="dualpath, basic, oracle, layerwise or alternating")]
Policy = Annotated[str, typer.Option(help="policy by name, or a file of yours, in place of the system's")]


def tune(
    profile: options.Model = "ds-660b",
    system: System = "dualpath",
    policy: Policy = "",
    shape: options.ShapeOption = None,
    trials: Trials = 50,
    storage: Storage = "",
    study: Study = "",
    seed: SearchSeed = 0,
    knobs: Knobs = "",
    ranges: Range = None,
    points: Points = 9,
    trace: options.Trace = None,
    trace_scale: options.TraceScale = 1.0,
    max_len: options.MaxLen = None,
    sessions: options.Sessions = None,
    append_scale: options.AppendScale = 1.0,
    gen_scale: options.GenScale = 1.0,
    aps: options.Aps = 0.0,
    as_recorded: options.AsRecorded = False,
    pauses: options.Pauses = True,
    until_s: options.Until = 0.0,
    warm_up_s: options.WarmUp = 0.0,
    session_seed: SessionSeed = PAPER_SEED,
    settings: options.Set = None,
    slow_nic: options.SlowNic = None,
    slow_gpu: options.SlowGpu = None,
    jobs: options.Jobs = 1,
    keep: options.Keep = None,
    out: options.Out = None,
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Search alpha, beta, headroom, quota and fetch cadence for the least JCT, or mean TTFT with --aps."""
    from dualpath.simulator.runs import tune as tuning  # Optuna takes a second to import
    from dualpath.simulator.runs.tune_report import report_of

    workload = options.workload_of(
        trace=trace,
        trace_scale=trace_scale,
        max_len=max_len,
        sessions=sessions,
        append_scale=append_scale,
        gen_scale=gen_scale,
        aps=aps,
        as_recorded=as_recorded,
        pauses=pauses,
        until_s=until_s,
        warm_up_s=warm_up_s,
        seed=session_seed,
    )
    case = Case(
        profile,
        system,
        shape or load_profile(profile).shape.name,
        workload,
        policy=policy,
        **options.changes_of(settings),
        slow_nics=options.slow_of(slow_nic, "slow_nic"),
        slow_gpus=options.slow_of(slow_gpu, "slow_gpu"),
    )
    names = [name.strip() for name in knobs.split(",") if name.strip()]
    problem = tuning.problem_of(case, names=names, ranges=ranges or ())
    name = study or problem.study_name
    processes = options.jobs_of(jobs)
    try:
        with tuning.reachable():
            opened = tuning.open_study(problem, storage=storage, name=name, seed=seed)
            with (
                options.watching("tune", quiet=as_json) as told,
                tuning.Bench(jobs=processes, kept=keep, told=told) as bench,
            ):
                tuning.search(opened, problem, bench, trials=trials, said=_say)
            with (
                options.watching("sweep", quiet=as_json) as told,
                tuning.Bench(jobs=processes, kept=keep, told=told) as bench,
            ):
                report = report_of(opened, problem, bench, points=points)
    except KeyboardInterrupt:
        _say(_stopped(name, kept=bool(storage), named=bool(study)))
        raise typer.Exit(130) from None
    if plot is not None:
        from dualpath.simulator.runs.tune_plot import draw

        draw(report, plot)
    options.tell(report, out, as_json=as_json)
    if not as_json:
        _show(report)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stopped(name: str, *, kept: bool, named: bool) -> str:
    if not kept:
        return "stopped; the trials were in memory and are gone: with --storage sqlite:///tune.db they stay"
    how = "the same command goes on" + ("" if named else f", also with --study {name}")
    return f"stopped; the trials that have ended are in study {name}: {how}"


def _show(report: Mapping[str, Any]) -> None:
    show = render.console.print
    default, best = report["default"], report["best"]
    counts = ", ".join(f"{count} {state}" for state, count in report["trials"].items())
    label = "mean TTFT" if report["objective"] == "ttft_mean_s" else "JCT"
    show(f"{report['case']}: {label}; study {report['study']}, trials: {counts}")
    show(f"default  {_seconds(default['value_s'])}")
    show(f"best     {_seconds(best['value_s'])}, trial {best['trial']}: {_percent(report['gain_percent'])} less")
    show(f"apply    {report['flags']}")
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("knob", "default", "best", "within 1 %", "within 5 %", "worst", "weight"):
        table.add_column(head, justify="left" if head == "knob" else "right", no_wrap=True)
    for name, knob in report["knobs"].items():
        table.add_row(
            name,
            f"{knob['default']:.4g}",
            f"{knob['best']:.4g}",
            _ends(knob["within_1_percent"], knob["range"]),
            _ends(knob["within_5_percent"], knob["range"]),
            f"+{knob['worst_percent']:.1f} %",
            f"{knob['importance']:.2f}",
        )
    show(table)
    show(f"within, worst: a sweep of each knob around the best; weight: importance by {report['importance_from']}")
    for name, knob in report["knobs"].items():
        show(f"  {name:<17} {knob['what']}")
    for check in report["check"]:
        show(
            f"other sessions, seed {check['seed']}: default {_seconds(check['default_s'])}, "
            f"best {_seconds(check['best_s'])}: {_percent(check['gain_percent'])} less"
        )
    better = report["better_in_sweep"]
    if better is not None and better["gain_percent"] >= SHOWN_PERCENT:
        show(
            f"the sweep met {better['knob']}={better['value']:.4g}: {_seconds(better['value_s'])}, "
            f"{_percent(better['gain_percent'])} less than the best trial"
        )


def _ends(ends: list[float], whole: list[float]) -> str:
    return "all" if ends == whole else f"{ends[0]:.3g}-{ends[1]:.3g}"


def _seconds(value: float | None) -> str:
    return "could not be run" if value is None else f"{value:.5g} s"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f} %"
