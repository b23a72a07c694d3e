"""`dualpath sim run` and `dualpath sim compare`: one workload under one system, or under several."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dualpath.cli import render
from dualpath.client.traces import TraceCounts
from dualpath.simulator.commands import options
from dualpath.simulator.commands.tables import printed
from dualpath.simulator.driver import EndEarly
from dualpath.simulator.profiles.profile import load_profile
from dualpath.simulator.reproduce.figures import Table
from dualpath.simulator.runs.case import Case, run_case
from dualpath.simulator.runs.interrupt import at_safe_points
from dualpath.simulator.runs.pool import Result, run_cases
from dualpath.simulator.scenario import SYSTEMS
from dualpath.simulator.workload.generator import PAPER_SEED
from dualpath.simulator.workload.sessions import session_counts

RUN_EPILOG = """For example, half an hour of sessions, and a recorded day on a cluster of yours:

  dualpath sim run --aps 0.4 --until-s 1800 --warm-up-s 600

  dualpath sim run --trace turns.csv.gz --profile my-model.toml --shape 3P5D --as-recorded

A slow storage NIC on the first prefill node, and a longer compute quota:

  dualpath sim run --slow-nic 0=2 --set quota_s=0.5
"""
COMPARE_EPILOG = """  dualpath sim compare --sessions 256 --system basic --system dualpath --policy my_policy.py

Systems: dualpath and basic as in the paper; layerwise and alternating, the steps between them; oracle, which reads
and moves KV in no time.
"""
SystemOption = Annotated[str, typer.Option("--system", help=f"one of {', '.join(SYSTEMS)}")]
Systems = Annotated[list[str] | None, typer.Option("--system", help=f"of {', '.join(SYSTEMS)}; repeatable")]
PolicyOption = Annotated[str, typer.Option("--policy", help="a policy of ours, or a Python file of yours")]
Policies = Annotated[list[str] | None, typer.Option("--policy", help="the same as further columns; repeatable")]
WithService = Annotated[bool, typer.Option("--with-service", help="the whole scheduler in virtual time, 50x slower")]


def run(
    profile: options.Model = "ds-660b",
    shape: options.ShapeOption = None,
    system: SystemOption = "dualpath",
    policy: PolicyOption = "",
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
    seed: options.Seed = PAPER_SEED,
    settings: options.Set = None,
    slow_nic: options.SlowNic = None,
    slow_gpu: options.SlowGpu = None,
    with_service: WithService = False,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    workload = options.workload_of(
        trace=trace, trace_scale=trace_scale, max_len=max_len, sessions=sessions, append_scale=append_scale,
        gen_scale=gen_scale, aps=aps, as_recorded=as_recorded, pauses=pauses, until_s=until_s, warm_up_s=warm_up_s,
        seed=seed,
    )  # fmt: skip
    case = Case(
        profile, system, shape or load_profile(profile).shape.name, workload, policy=policy,
        slow_nics=options.slow_of(slow_nic, "slow_nic"), slow_gpus=options.slow_of(slow_gpu, "slow_gpu"),
        **options.changes_of(settings),
    )  # fmt: skip
    built, _ = workload.build()
    counts = session_counts(built)
    began_s = time.monotonic()
    with options.watching(case.title, quiet=as_json) as told, at_safe_points() as interrupt:

        def progress(turns: int, ended_sessions: int) -> None:
            if told is not None:
                told(0, 1, turns, f"{ended_sessions:,} of {counts.sessions:,} sessions ended")
            if interrupt.is_wanted:
                raise EndEarly

        summary = run_case(case, progress=progress, with_service=with_service).as_dict()
    complete = not interrupt.is_wanted
    recorded = workload.recorded
    body: dict[str, Any] = {
        "case": asdict(case),
        "complete": complete,
        "workload": asdict(counts),
        **({"recorded": asdict(recorded)} if recorded is not None else {}),
        "summary": summary,
    }
    options.tell(body, out, as_json=as_json)
    if not as_json:
        render.console.print(printed(workload_table(counts, recorded)))
        render.console.print(printed(summary_table({case.policy or case.system: summary})))
        took_s = time.monotonic() - began_s
        render.console.print(f"{summary['turns']:,} turns in {summary['jct_s']:,.0f} s, simulated in {took_s:.1f} s")
    if not complete:
        print("interrupted: these are the figures so far", file=sys.stderr)
        raise typer.Exit(130)


def compare(
    profile: options.Model = "ds-660b",
    shape: options.ShapeOption = None,
    systems: Systems = None,
    policies: Policies = None,
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
    seed: options.Seed = PAPER_SEED,
    settings: options.Set = None,
    slow_nic: options.SlowNic = None,
    slow_gpu: options.SlowGpu = None,
    jobs: options.Jobs = 0,
    keep: options.Keep = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    workload = options.workload_of(
        trace=trace, trace_scale=trace_scale, max_len=max_len, sessions=sessions, append_scale=append_scale,
        gen_scale=gen_scale, aps=aps, as_recorded=as_recorded, pauses=pauses, until_s=until_s, warm_up_s=warm_up_s,
        seed=seed,
    )  # fmt: skip
    cases = {
        name: Case(
            profile,
            system,
            shape or load_profile(profile).shape.name,
            workload,
            policy=policy,
            slow_nics=options.slow_of(slow_nic, "slow_nic"),
            slow_gpus=options.slow_of(slow_gpu, "slow_gpu"),
            **options.changes_of(settings),
        )
        for name, system, policy in [
            *((system, system, "") for system in systems or ("basic", "dualpath")),
            *((Path(policy).stem, "dualpath", policy) for policy in policies or ()),
        ]
    }
    for case in cases.values():
        case.scenario()  # whatever is wrong is said before the first run, not after it
    with options.keeping("comparing", keep, quiet=as_json) as told:
        results = run_cases(list(cases.values()), jobs=options.jobs_of(jobs), kept=keep, told=told)
    summaries = {name: results[case] for name, case in cases.items()}
    counts = session_counts(workload.build()[0])
    options.tell({"workload": asdict(counts), "summaries": summaries}, out, as_json=as_json)
    if not as_json:
        render.console.print(printed(workload_table(counts)))
        render.console.print(printed(summary_table(summaries)))


def workload_table(counts: TraceCounts, recorded: TraceCounts | None = None) -> Table:
    """What is simulated, beside what was recorded."""
    rows = []
    names = (
        ("sessions", "sessions", "{:,}"),
        ("turns", "turns", "{:,}"),
        ("turns per session, mean", "turns_mean", "{:,.2f}"),
        ("turns per session, median", "turns_median", "{:,.0f}"),
        ("prompt, mean tokens", "input_mean_tokens", "{:,.0f}"),
        ("prompt, median tokens", "input_median_tokens", "{:,.0f}"),
        ("append, median tokens", "append_median_tokens", "{:,.0f}"),
        ("generation, mean tokens", "output_mean_tokens", "{:,.0f}"),
        ("hit rate of tokens", "token_hit_rate", "{:.2%}"),
        ("pause, median s", "pause_median_s", "{:,.1f}"),
        ("pause, 90 % s", "pause_p90_s", "{:,.1f}"),
    )
    for label, name, form in names:
        values = [getattr(one, name) for one in (counts, recorded) if one is not None]
        if any(value is not None for value in values):
            rows.append([label, *("" if value is None else form.format(value) for value in values)])
    return Table("Workload", ["", "simulated", *(["recorded"] if recorded is not None else [])], rows)


def summary_table(summaries: Mapping[str, Result]) -> Table:
    """One column per system; speedups are over the first."""
    first = next(iter(summaries.values()))
    rows: list[list[str]] = [["JCT, s", *(f"{one['jct_s']:,.1f}" for one in summaries.values())]]
    if len(summaries) > 1:
        rows.append(["speedup", *(f"{first['jct_s'] / one['jct_s']:.2f}x" for one in summaries.values())])
    for name in ("ttft_s", "ttst_s", "tpot_s"):
        for part in ("mean", "p50", "p99"):
            label = f"{name.removesuffix('_s').upper()} {part}, s"
            rows.append([label, *(f"{one[name][part]:,.3f}" for one in summaries.values())])
    rows += [
        [f"of TTFT: {part}, s", *(f"{one['parts_s'][part]['mean']:,.3f}" for one in summaries.values())]
        for part in ("scheduling", "buffer", "read", "prefill")
    ]
    rows.append(["hit rate of tokens", *(f"{one['hit_rate']:.2%}" for one in summaries.values())])
    rows.append(["turns per second", *(f"{one['turns'] / one['jct_s']:,.1f}" for one in summaries.values())])
    rows.append(["storage NICs, mean busy", *(_mean_busy(one["nic_busy"]) for one in summaries.values())])
    for label, name in (
        ("storage NICs, max/avg", "nic_max_over_avg"),
        ("attention, max/avg", "attention_max_over_avg"),
    ):
        rows.append([label, *(f"{one[name]:.3f}" for one in summaries.values())])
    return Table("Result", ["", *summaries], rows)


def _mean_busy(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.1%}"
