"""`dualpath sim plan`: the best split of nodes, what bounds each, and the sizes it needs."""

from typing import Annotated

import typer

from dualpath.cli import render
from dualpath.model.errors import Rejected
from dualpath.simulator.commands import options
from dualpath.simulator.commands.tables import printed
from dualpath.simulator.profiles.profile import load_profile
from dualpath.simulator.reproduce.figures import Table
from dualpath.simulator.runs.case import Case
from dualpath.simulator.runs.plan import SIZE_SLACK, Plan, Slo, busy, make_plan
from dualpath.simulator.workload.generator import PAPER_SEED

EPILOG = """Six nodes, all sessions at once; the same with arrivals; the most arrivals that meet an SLO:

  dualpath sim plan --nodes 6 --sessions 2048

  dualpath sim plan --nodes 6 --aps 0.4 --until-s 2400 --warm-up-s 1200 --slo-ttft-s 4

  dualpath sim plan --nodes 6 --until-s 2400 --warm-up-s 1200 --slo-ttft-s 4 --slo-tpot-s 0.05
"""
SEARCH_S, SEARCH_WARM_UP_S = 2400.0, 1200.0
Nodes = Annotated[int, typer.Option(help="nodes in all, eight GPUs and one storage NIC each")]
SloTtft = Annotated[float, typer.Option("--slo-ttft-s", help="mean TTFT wanted; 0: any")]
SloTpot = Annotated[float, typer.Option("--slo-tpot-s", help="mean TPOT wanted; 0: any")]


def plan(
    nodes: Nodes = 6,
    profile: options.Model = "ds-660b",
    slo_ttft_s: SloTtft = 0.0,
    slo_tpot_s: SloTpot = 0.0,
    trace: options.Trace = None,
    trace_scale: options.TraceScale = 1.0,
    max_len: options.MaxLen = None,
    sessions: options.Sessions = None,
    append_scale: options.AppendScale = 1.0,
    gen_scale: options.GenScale = 1.0,
    aps: options.Aps = 0.0,
    pauses: options.Pauses = True,
    until_s: options.Until = 0.0,
    warm_up_s: options.WarmUp = 0.0,
    seed: options.Seed = PAPER_SEED,
    settings: options.Set = None,
    jobs: options.Jobs = 0,
    keep: options.Keep = None,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    slo = Slo(slo_ttft_s, slo_tpot_s)
    if slo and not aps:
        if sessions is not None:
            message = f"sessions are {sessions}; the search for the most sessions per second takes as many as come"
            raise Rejected(f"{message}, give --until-s in their place", field="sessions")
        if not until_s:
            until_s, warm_up_s = SEARCH_S, warm_up_s or SEARCH_WARM_UP_S
    workload = options.workload_of(
        trace=trace, trace_scale=trace_scale, max_len=max_len, sessions=sessions, append_scale=append_scale,
        gen_scale=gen_scale, aps=aps, pauses=pauses, until_s=until_s, warm_up_s=warm_up_s, seed=seed,
    )  # fmt: skip
    shape = load_profile(profile).shape.name
    base = Case(profile, "dualpath", shape, workload, **options.changes_of(settings))
    with options.keeping(f"planning {nodes} nodes", keep, quiet=as_json) as told:
        found = make_plan(base, nodes, slo, jobs=options.jobs_of(jobs), kept=keep, told=told)
    options.tell(found.as_dict(), out, as_json=as_json)
    if not as_json:
        for table in plan_tables(found):
            render.console.print(printed(table))
        for reason in found.reasons():
            render.console.print(reason)
    if found.best.missed:
        raise Rejected(
            f"no split of {nodes} nodes meets the SLO; of the best, {found.best.case.shape}, "
            + " and ".join(found.best.missed),
            field="slo",
        )


def plan_tables(found: Plan) -> list[Table]:
    """Splits, then sizes."""
    rows, online = [], bool(found.best.aps)
    for split in found.splits:
        shares = busy(split.result, split.shape)
        in_range = found.free.holds(split.shape.prefill_nodes, split.shape.decode_nodes)
        rows.append(
            [
                split.case.shape,
                f"{split.aps:g}" if online else f"{split.result['jct_s']:,.0f}",
                f"{split.result['ttft_s']['mean']:.2f}",
                f"{split.result['tpot_s']['mean']:.3f}",
                *(f"{share:.0%}" for share in shares.values()),
                "yes" if in_range else "no",
                split.bottleneck,
            ]
        )
    header = [
        "split",
        "APS" if online else "JCT",
        "TTFT",
        "TPOT",
        "PE\nbusy",
        "PE\nNICs",
        "DE\nNICs",
        "in\nrange",
        "bound by",
    ]
    note = (
        f"In range: P/D from {float(found.free.low):.2f} to {float(found.free.high):.2f}, where by the traffic alone"
        " (paper, section 4.2) nothing but storage limits."
    )
    sizes = [
        [size.name, *(f"{tokens:,}" for tokens in (size.given_tokens, size.peak_tokens, size.enough_tokens))]
        for size in found.sizes
    ]
    return [
        Table("Splits, the best first; seconds", header, rows, note),
        Table(f"Sizes for {found.best.case.shape}", ["tokens", "profile", "peak", "enough"], sizes,
              f"Enough: the least tried whose result stays within {SIZE_SLACK:.0%}; a peak at what the profile"
              " has says that more may help."),
    ]  # fmt: skip
