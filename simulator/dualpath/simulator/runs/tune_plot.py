"""The report of a study as a picture: a panel per knob with its sweep, and one with the trials."""

import math
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from dualpath.model.errors import Rejected

COLUMNS = 3
PANEL_INCHES = (3.6, 2.7)
TOP_PERCENT = 20.0  # a panel shows no more above the best; its title has the worst
LINE, DEFAULT, BEST, BAND = "#1f4e79", "#b35900", "#2e7d32", "#cfe8cf"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Write a PNG. raises Rejected for a path that cannot be written"""
    knobs = report["knobs"]
    rows = -(-(len(knobs) + 1) // COLUMNS)
    figure = Figure(figsize=(PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    label = "mean TTFT (s)" if report["objective"] == "ttft_mean_s" else "JCT (s)"
    worst = max(knob["worst_percent"] for knob in knobs.values())
    for panel, (name, knob) in zip(panels, knobs.items(), strict=False):
        _knob(panel, name, knob, report["best"]["value_s"])
        panel.set_ylim(-1.5, min(1.15 * max(worst, 2.0), TOP_PERCENT))  # one scale: a flat knob looks flat
        panel.set_ylabel(f"{label.partition(' (')[0]} above the best (%)", fontsize=8)
    rest = panels[len(knobs) :]
    _trials(rest[0], report)
    rest[0].set_ylabel(label, fontsize=8)
    for panel in rest[1:]:
        panel.set_axis_off()
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{report['case']}: each knob around the best trial", fontsize=10)
    try:
        figure.savefig(path, dpi=130, format="png")
    except OSError as error:
        raise Rejected(f"cannot write {path}: {error.strerror}", field="plot") from error


def _knob(panel: Axes, name: str, knob: Mapping[str, Any], best_s: float) -> None:
    met = [(value, 100 * (objective_s / best_s - 1)) for value, objective_s in knob["sweep"] if objective_s is not None]
    low, high = knob["range"]
    panel.axvspan(*knob["within_1_percent"], color=BAND, label="within 1 %")
    panel.plot(*zip(*met, strict=True), color=LINE, marker="o", markersize=3, linewidth=1.2, label="sweep")
    panel.axvline(knob["default"], color=DEFAULT, linestyle="--", linewidth=1.2, label="default")
    panel.axvline(knob["best"], color=BEST, linewidth=1.2, label="best trial")
    panel.set_xscale("log")
    panel.set_xticks([low, math.sqrt(low * high), high], minor=False)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_title(f"{name} ({knob['unit']}), worst +{knob['worst_percent']:.1f} %", fontsize=9)
    panel.tick_params(labelsize=7, which="both")


def _trials(panel: Axes, report: Mapping[str, Any]) -> None:
    numbers, values = zip(*report["history"], strict=True)
    panel.plot(numbers, values, color=LINE, marker="o", markersize=3, linestyle="none")
    panel.step(numbers, list(accumulate(values, min)), where="post", color=BEST, linewidth=1.2)
    panel.set_title("trials, and the best so far", fontsize=9)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.tick_params(labelsize=7)
