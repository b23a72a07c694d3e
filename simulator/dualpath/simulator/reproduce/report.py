"""A reproduction as one value: its numbers for JSON, and the page docs/reproduction.md."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dualpath.simulator.reproduce.figures import DRAWN, Figure, Results, Table, error
from dualpath.simulator.reproduce.grid import FIGURES, figure_cases, held_out_jct_s

INTRO = """# Reproduction of the paper's evaluation

Written by `dualpath sim reproduce --docs docs` out of simulated runs: do not edit. The simulator runs our scheduling
policies on a model of the cluster ([simulator/README.md](../simulator/README.md)). The paper's numbers are those of
section 8 of arXiv 2602.21548; what it shows only as a plot was read off by eye (about 2 %). Times are seconds.
"""
FITTED = """The cost profiles of the three models (`simulator/dualpath/simulator/profiles/models/`) were fitted to the
rows of Fig. 7 marked "fitted" and to the appends of Fig. 9. A decode node's share of the storage NIC was set with
Fig. 8, the PE HBM of Basic (660B) with Fig. 12, the window of the NIC balance with Fig. 14, and the knees of Fig. 10
were looked at. There is no constant per cell, and the storage and compute NICs are the same for all models. Held out
are the other rows of Fig. 7, the generations of Fig. 9 and Table 3.
"""
LEFT_OUT = """## Left out

Fig. 13 of the paper: no number of it was at hand to compare with. The paper's own clusters
are not modelled below the level of nodes: no network congestion, no failing nodes.
"""


def draw(results: Results, names: Sequence[str] = FIGURES) -> dict[str, Figure]:
    """The figures whose runs are all there."""
    return {name: DRAWN[name](results) for name in names if all(case in results for case in figure_cases(name))}


def numbers_of(figures: Mapping[str, Figure], results: Results) -> dict[str, Any]:
    """For JSON: figure by figure, with the headline numbers under names of their own."""
    made: dict[str, Any] = {name: dict(figure.numbers) for name, figure in figures.items()}
    if "fig12" in made:
        made["ablation"] = {name: made["fig12"][name] for name in ("cuts", "cuts_of")}
    if "fig10" in made:
        made["online"] = {model: {"knee_aps": numbers["knee_aps"]} for model, numbers in made["fig10"].items()}
    if "fig14" in made:
        made["nic"] = {"max_over_avg": made["fig14"]["max_over_avg"]}
    wanted = {case: jct_s for case, jct_s in held_out_jct_s().items() if case in results}
    held_out = [abs(error(results[case]["jct_s"], jct_s)) for case, jct_s in wanted.items()]
    if held_out:
        made["held_out"] = {"mean_abs_error": fmean(held_out), "numbers": len(held_out)}
    return made


def headline(numbers: Mapping[str, Any]) -> Table:
    """The numbers that say whether the paper is reproduced, in one table."""
    rows: list[tuple[str, str, str]] = []
    for model, paper_name in (("ds-660b", "DS 660B"), ("ds-27b", "DS 27B"), ("qwen-32b", "Qwen 32B")):
        if "fig7" in numbers:
            shown = f"{numbers['fig7'][model]['mean_abs_error']:.1%}"
            rows.append((f"mean absolute error of JCT, {paper_name}", "", shown))
    if "fig7" in numbers:
        rows.append(("mean error of the speedup over basic", "", f"{numbers['fig7']['speedup_error']:.3f}"))
    if "held_out" in numbers:
        rows.append(("mean absolute error of all held-out JCTs", "", f"{numbers['held_out']['mean_abs_error']:.1%}"))
    if "ablation" in numbers:
        cuts = " / ".join(f"{cut:.1f}" for cut in numbers["ablation"]["cuts"])
        rows.append(("cuts of JCT by + layerwise / + dual path / + scheduling, %", "17.2 / 38.2 / 45.6", cuts))
    for model, knees in numbers.get("online", {}).items():
        wanted = numbers["fig10"][model]["paper_knee_aps"]
        found = knees["knee_aps"]
        rows.append(
            (
                f"sessions per second within the SLO, {model}: dualpath / basic",
                f"{wanted['dualpath']:g} / {wanted['basic']:g}",
                f"{found['dualpath']:g} / {found['basic']:g}",
            )
        )
    if "nic" in numbers:
        found = numbers["nic"]["max_over_avg"]
        shown = f"{found['unscheduled']:.2f} / {found['scheduled']:.2f}"
        rows.append(("storage NICs, busiest over mean: unscheduled / scheduled", "1.53 / 1.18", shown))
    if "table3" in numbers:
        shown = " / ".join(f"{value:,.0f}" for value in numbers["table3"]["offline_jct_s"].values())
        rows.append(("JCT at 48 / 1,152 GPUs, s", "3,167 / 3,201", shown))
    return Table("In short", ["", "paper", "ours"], rows)


def page(
    figures: Mapping[str, Figure],
    numbers: Mapping[str, Any],
    images: Iterable[tuple[str, str]] = (),
) -> str:
    """The page in Markdown. images: (figure, path) of plots."""
    pictures: dict[str, list[str]] = {}
    for name, path in images:
        pictures.setdefault(name, []).append(path)
    parts = [INTRO, _markdown(headline(numbers)), FITTED]
    for name, figure in figures.items():
        parts.append(f"## {figure.title}\n")
        parts += [f"![{figure.title}]({path})\n" for path in pictures.get(name, ())]
        parts += [_markdown(table) for table in figure.tables]
    parts.append(LEFT_OUT)
    return "\n".join(parts)


def _markdown(table: Table) -> str:
    lines = [f"**{table.title}**", "", _row(table.header), _row(["---"] * len(table.header))]
    lines += [_row(row) for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
