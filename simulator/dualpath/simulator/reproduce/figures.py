"""What came out beside what the paper shows: for each figure its numbers (for JSON) and its tables (for a page)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dualpath.simulator.reproduce.grid import (
    ABLATION,
    BEYOND,
    BEYOND_LOADS,
    GRID_SYSTEMS,
    MODELS,
    ONLINE_APS,
    PAIR,
    Cell,
    ablation_case,
    beyond_case,
    fig7_cells,
    online_case,
    paper,
    scaled_case,
    shape_case,
    table3_offline_case,
    table3_online_case,
    table3_shapes,
)
from dualpath.simulator.runs.case import Case
from dualpath.simulator.runs.pool import Result, objective_s

Results = Mapping[Case, Result]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header, with a sentence about them."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """`numbers` go into the JSON under their names."""

    title: str
    numbers: Mapping[str, Any]
    tables: Sequence[Table] = field(default_factory=tuple)


def error(ours: float, theirs: float) -> float:
    """Relative, signed."""
    return ours / theirs - 1.0


def fig7(results: Results) -> Figure:
    """Offline JCT of three models (Fig. 7), its errors, and those of the cells that no cost was fitted to."""
    numbers: dict[str, Any] = {}
    tables, speedup_errors, held_out = [], [], []
    for model in MODELS:
        cells = list(fig7_cells(model))
        ours = {cell: float(results[cell.case]["jct_s"]) for cell in cells}
        errors = [abs(error(ours[cell], cell.jct_s)) for cell in cells]
        held_out += [abs(error(ours[cell], cell.jct_s)) for cell in cells if not cell.is_fitted]
        model_speedups = _speedup_errors(cells, ours)
        speedup_errors += model_speedups
        numbers[model] = {
            "mean_abs_error": fmean(errors),
            "max_abs_error": max(errors),
            "mean_abs_error_fitted": fmean(abs(error(ours[c], c.jct_s)) for c in cells if c.is_fitted),
            "mean_abs_error_held_out": fmean(abs(error(ours[c], c.jct_s)) for c in cells if not c.is_fitted),
            "mean_abs_error_of": {
                system: fmean(abs(error(ours[c], c.jct_s)) for c in cells if c.system == system)
                for system in GRID_SYSTEMS
            },
            "speedup_error": fmean(model_speedups),
            "cells": [
                {
                    "system": cell.system,
                    "tokens_max": cell.tokens_max,
                    "sessions": cell.sessions,
                    "paper_jct_s": cell.jct_s,
                    "jct_s": ours[cell],
                    "fitted": cell.is_fitted,
                }
                for cell in cells
            ],
        }
        tables.append(_fig7_table(model, cells, ours))
    numbers["speedup_error"] = fmean(speedup_errors)
    numbers["mean_abs_error_held_out"] = fmean(held_out)
    return Figure("Fig. 7: offline JCT", numbers, tables)


def _speedup_errors(cells: Sequence[Cell], ours: Mapping[Cell, float]) -> list[float]:
    """|speedup of dualpath over basic - the paper's| of each (MaxLen, sessions)."""
    at = {(cell.tokens_max, cell.sessions, cell.system): cell for cell in cells}
    errors = []
    for (tokens_max, sessions, system), cell in at.items():
        if system == "dualpath":
            basic = at[tokens_max, sessions, "basic"]
            errors.append(abs(ours[basic] / ours[cell] - basic.jct_s / cell.jct_s))
    return errors


def _fig7_table(model: str, cells: Sequence[Cell], ours: Mapping[Cell, float]) -> Table:
    at = {(cell.sessions, cell.tokens_max, cell.system): cell for cell in cells}
    rows = []
    for sessions, tokens_max in dict.fromkeys((cell.sessions, cell.tokens_max) for cell in cells):
        row = [f"{sessions:,}", f"{tokens_max // 1024}K"]
        for system in GRID_SYSTEMS:
            cell = at[sessions, tokens_max, system]
            row.append(f"{cell.jct_s:,.0f} / {ours[cell]:,.0f} / {error(ours[cell], cell.jct_s):+.0%}")
        dual, basic = at[sessions, tokens_max, "dualpath"], at[sessions, tokens_max, "basic"]
        row.append(f"{basic.jct_s / dual.jct_s:.2f}x / {ours[basic] / ours[dual]:.2f}x")
        row.append("yes" if dual.is_fitted else "")
        rows.append(row)
    shape = paper()["fig7"][model]["shape"]
    header = ["sessions", "MaxLen", *(f"{system}, s" for system in GRID_SYSTEMS), "speedup", "fitted"]
    errors = fmean(abs(error(ours[cell], cell.jct_s)) for cell in cells)
    return Table(f"{model}, {shape}: paper / ours / error", header, rows, f"Mean absolute error {errors:.1%}.")


def fig8(results: Results) -> Figure:
    """P/D shapes of 27B (Fig. 8)."""
    table = paper()["fig8"]
    rows, numbers, speedups = [], {}, []
    for at, shape in enumerate(table["shapes"]):
        ours = {system: float(results[shape_case(shape, system)]["jct_s"]) for system in PAIR}
        numbers[shape] = {"jct_s": ours, "paper_jct_s": {system: table[system][at] for system in PAIR}}
        speedups.append(ours["basic"] / ours["dualpath"])
        compared = [_against(ours[system], table[system][at]) for system in PAIR]
        rows.append([shape, *compared, f"{table['basic'][at] / table['dualpath'][at]:.2f}x / {speedups[-1]:.2f}x"])
    errors = [abs(error(n["jct_s"][s], n["paper_jct_s"][s])) for n in numbers.values() for s in PAIR]
    numbers_all = {
        **numbers,
        "speedup": {"mean": fmean(speedups), "max": max(speedups)},
        "mean_abs_error": fmean(errors),
    }
    note = (
        f"Speedup mean {fmean(speedups):.2f}x, max {max(speedups):.2f}x"
        f" (paper: {table['speedup']['mean']}x and {table['speedup']['max']}x)."
    )
    title = "P/D shapes, ds-27b, 64K, 2,048 sessions: paper / ours / error"
    header = ["shape", "dualpath, s", "basic, s", "speedup"]
    return Figure("Fig. 8: prefill and decode nodes", numbers_all, [Table(title, header, rows, note)])


def fig9(results: Results) -> Figure:
    """Appends and generations scaled (Fig. 9)."""
    numbers: dict[str, Any] = {}
    tables = []
    for kind in ("append", "gen"):
        table = paper()["fig9"][kind]
        systems = [system for system in GRID_SYSTEMS if system in table]
        ours = {
            system: [float(results[scaled_case(kind, scale, system)]["jct_s"]) for scale in table["scale"]]
            for system in systems
        }
        errors = [abs(error(o, t)) for system in systems for o, t in zip(ours[system], table[system], strict=True)]
        numbers[kind] = {"scale": table["scale"], "jct_s": ours, "mean_abs_error": fmean(errors)}
        rows = [
            [f"x{scale:g}", *(_against(ours[system][at], table[system][at]) for system in systems)]
            for at, scale in enumerate(table["scale"])
        ]
        header = [kind, *(f"{system}, s" for system in systems)]
        title = f"{kind} scaled before the cut, ds-660b, 64K, 1,024 sessions: paper / ours / error"
        tables.append(Table(title, header, rows, f"Mean absolute error {fmean(errors):.1%}."))
    return Figure("Fig. 9: longer appends and generations", numbers, tables)


def knee_aps(rates: Sequence[float], results: Sequence[Result], *, slo_ttft_s: float, slo_tpot_s: float) -> float:
    """The highest rate up to which every rate met the SLO; 0 if the first one missed it."""
    knee = 0.0
    for aps, result in sorted(zip(rates, results, strict=True), key=lambda pair: pair[0]):
        if result["ttft_s"]["mean"] > slo_ttft_s or result["tpot_s"]["mean"] > slo_tpot_s:
            break
        knee = aps
    return knee


def fig10(results: Results) -> Figure:
    """TTFT, TTST and TPOT by session arrivals, and how many arrivals meet the SLO (Fig. 10)."""
    numbers: dict[str, Any] = {}
    tables = []
    for model in ("ds-660b", "ds-27b"):
        table = paper()["fig10"][model]
        knees, curves, rows = {}, {}, []
        for system in PAIR:
            rates = ONLINE_APS[model, system]
            found = [results[online_case(model, system, table["shape"], aps)] for aps in rates]
            knees[system] = knee_aps(rates, found, slo_ttft_s=table["slo_ttft_s"], slo_tpot_s=table["slo_tpot_s"])
            curves[system] = {
                "aps": list(rates),
                **{name: [result[name]["mean"] for result in found] for name in ("ttft_s", "ttst_s", "tpot_s")},
            }
            theirs = dict(zip(table.get("aps", ()), table.get(system, ()), strict=False))
            for aps, result in zip(rates, found, strict=True):
                shown = f"{theirs[aps]:.2f}" if aps in theirs else ""
                rows.append(
                    [system, f"{aps:g}", shown]
                    + [f"{result[name]['mean']:.3f}" for name in ("ttft_s", "ttst_s", "tpot_s")]
                )
        wanted = table["knee_aps"]
        numbers[model] = {"knee_aps": knees, "paper_knee_aps": wanted, "curves": curves}
        note = (
            f"Highest APS within TTFT {table['slo_ttft_s']:g} s and TPOT {table['slo_tpot_s']:g} s: "
            + ", ".join(f"{system} {knees[system]:g} (paper {wanted[system]:g})" for system in PAIR)
            + "."
        )
        header = ["system", "APS", "paper TTFT, s", "TTFT, s", "TTST, s", "TPOT, s"]
        tables.append(Table(f"{model}, {table['shape']}, 64K, means", header, rows, note))
    return Figure("Fig. 10: online latencies", numbers, tables)


def fig11(results: Results) -> Figure:
    """What DualPath's TTFT consists of (Fig. 11)."""
    table = paper()["fig11"]
    parts = ("scheduling", "buffer", "read", "prefill")
    runs = [results[online_case("ds-660b", "dualpath", "2P4D", aps)] for aps in table["aps"]]
    ours = {part: [run["parts_s"][part]["mean"] for run in runs] for part in parts}
    rows = [
        [part, " to ".join(f"{value:g}" for value in dict.fromkeys(table[part])), *(f"{v:.3f}" for v in ours[part])]
        for part in parts
    ]
    header = ["part", "paper, s", *(f"{aps:g} APS" for aps in table["aps"])]
    note = "Scheduling is until the plan, buffer until its tokens are granted, read until the hit KV is there."
    title = "ds-660b, 2P4D, 64K, mean seconds"
    return Figure("Fig. 11: parts of TTFT", {"aps": table["aps"], **ours}, [Table(title, header, rows, note)])


def fig12(results: Results) -> Figure:
    """From Basic to DualPath step by step (Fig. 12): JCT, and the mean cut against Basic."""
    table = paper()["fig12"]
    ours = {
        system: [float(results[ablation_case(system, count)]["jct_s"]) for count in table["sessions"]]
        for system in ABLATION
    }
    cuts = {
        system: 100 * fmean(1 - o / b for o, b in zip(ours[system], ours["basic"], strict=True))
        for system in ABLATION
        if system != "basic"
    }
    rows = []
    for system in ABLATION:
        row = [system, *(_against(o, t) for o, t in zip(ours[system], table[system], strict=True))]
        wanted = table["cuts_percent"].get(system)
        rows.append([*row, "" if wanted is None else f"{wanted:.1f} % / {cuts[system]:.1f} %"])
    header = ["system", *(f"{count:,} sessions, s" for count in table["sessions"]), "cut against basic"]
    numbers = {"jct_s": ours, "cuts": list(cuts.values()), "cuts_of": list(cuts)}
    title = "ds-660b, 2P4D, 64K: paper / ours / error"
    return Figure("Fig. 12: ablation", numbers, [Table(title, header, rows)])


def fig14(results: Results) -> Figure:
    """Busiest storage NIC over the mean of all (Fig. 14)."""
    count = paper()["fig12"]["sessions"][0]
    ours = {
        name: results[ablation_case(system, count)]["nic_max_over_avg"]
        for name, system in (("unscheduled", "alternating"), ("scheduled", "dualpath"))
    }
    rows = [[name, f"{paper()['fig14'][name]:.2f}", f"{value:.2f}"] for name, value in ours.items()]
    note = "Traffic of each minute, averaged over the minutes by traffic. Unscheduled: engines and sides take turns."
    header = ["", "paper", "ours"]
    title = f"Storage NICs, busiest over mean, ds-660b, 64K, {count:,} sessions"
    return Figure("Fig. 14: balance of the storage NICs", {"max_over_avg": ours}, [Table(title, header, rows, note)])


def fig15(results: Results) -> Figure:
    """Longest attention of a PE group's step over their mean, early in the run (Fig. 15)."""
    count = paper()["fig12"]["sessions"][0]
    ours = {
        name: results[ablation_case(system, count)]["attention_max_over_avg"]
        for name, system in (("unscheduled", "alternating"), ("scheduled", "dualpath"))
    }
    rows = [
        [name, f"{paper()['fig15'][name]:.2f}" if name in paper()["fig15"] else "", f"{value:.2f}"]
        for name, value in ours.items()
    ]
    title = f"Attention time of engines, longest over mean, ds-660b, 64K, {count:,} sessions, first 5 % of the run"
    numbers = {"max_over_avg": ours}
    return Figure("Fig. 15: balance of attention", numbers, [Table(title, ["", "paper", "ours"], rows)])


def table3(results: Results) -> Figure:
    """24 times the cluster and 24 times the sessions (Table 3)."""
    offline = {shape: results[table3_offline_case(shape)] for shape in table3_shapes("offline")}
    online = {shape: results[table3_online_case(shape)] for shape in table3_shapes("online")}
    jct_s = {shape: float(result["jct_s"]) for shape, result in offline.items()}
    theirs = paper()["table3"]
    rows = [
        [shape, f"{theirs['offline'][shape]['sessions']:,}", _against(jct_s[shape], theirs["offline"][shape]["jct_s"])]
        for shape in offline
    ]
    names = ("ttft_s", "ttst_s", "tpot_s")
    online_rows = [
        [shape, f"{theirs['online'][shape]['aps']:g}"]
        + [f"{theirs['online'][shape][name]:.3f} / {result[name]['mean']:.3f}" for name in names]
        for shape, result in online.items()
    ]
    spread = max(jct_s.values()) / min(jct_s.values()) - 1
    numbers = {
        "offline_jct_s": jct_s,
        "offline_turns_per_s": {shape: result["turns"] / result["jct_s"] for shape, result in offline.items()},
        "online": {shape: {name: result[name]["mean"] for name in names} for shape, result in online.items()},
    }
    tables = [
        Table(
            "Offline, ds-660b, 48K, dualpath: paper / ours / error",
            ["shape", "sessions", "JCT, s"],
            rows,
            f"The two differ by {spread:.1%}. The large one has"
            f" {max(numbers['offline_turns_per_s'].values()):,.0f} turns per second.",
        ),
        Table(
            "Online, ds-660b, 64K: paper / ours",
            ["shape", "APS", "TTFT, s", "TTST, s", "TPOT, s"],
            online_rows,
            "Stopped after 800 s, before contexts have grown to their length: compare the two shapes with each other.",
        ),
    ]
    return Figure("Table 3: scale", numbers, tables)


def beyond(results: Results) -> Figure:
    """What each option beyond the paper changes: JCT, or mean TTFT with arrivals, against dualpath."""
    numbers: dict[str, Any] = {}
    rows = []
    for load, base in BEYOND_LOADS.items():
        seconds = {system: objective_s(base, results[beyond_case(load, system)]) for system in ("dualpath", *BEYOND)}
        numbers[load] = seconds
        cells = [f"{error(seconds[system], seconds['dualpath']):+.1%}" for system in BEYOND]
        rows.append([load, "TTFT" if base.workload.aps else "JCT", f"{seconds['dualpath']:,.2f}", *cells])
    worst = max(error(of[system], of["dualpath"]) for of in numbers.values() for system in BEYOND)
    note = (
        "event: a PE group asks for turns during its steps too, not only between them. weighted: read queues are"
        " compared in seconds of each NIC, not in tokens. split: a turn's hit KV is read on both sides at once, in"
        " shares that end together. joint: a DE group is chosen by its tokens and by what its storage NIC has to read."
        f" The worst change of all is {worst:+.1%}."
    )
    title = "Change of JCT, or of mean TTFT where sessions arrive one by one"
    table = Table(title, ["load", "seconds of", "dualpath", *BEYOND], rows, note)
    return Figure("Beyond the paper", numbers, [table])


def _against(ours: float, theirs: float) -> str:
    return f"{theirs:,.0f} / {ours:,.0f} / {error(ours, theirs):+.0%}"


DRAWN: Mapping[str, Callable[[Results], Figure]] = {
    "fig7": fig7,
    "fig8": fig8,
    "fig9": fig9,
    "fig10": fig10,
    "fig11": fig11,
    "fig12": fig12,
    "fig14": fig14,
    "fig15": fig15,
    "table3": table3,
    "beyond": beyond,
}
