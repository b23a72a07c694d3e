"""Plots of a reproduction: ours as bars or lines, the paper's numbers as marks on them. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from dualpath.simulator.reproduce.figures import Figure
from dualpath.simulator.reproduce.grid import ABLATION, GRID_SYSTEMS, MODELS, PAIR, paper

COLORS = {
    "oracle": "#7f8c8d",
    "dualpath": "#1f77b4",
    "basic": "#d9822b",
    "layerwise": "#9467bd",
    "alternating": "#2a9d8f",
}
DPI = 110
WIDTH = 0.27


def plot_all(figures: Mapping[str, Figure], folder: Path) -> list[tuple[str, Path]]:
    """PNG files of every figure that has a plot; returns (figure, file)."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, draw in (
        ("fig7", _fig7),
        ("fig8", _fig8),
        ("fig9", _fig9),
        ("fig10", _fig10),
        ("fig11", _fig11),
        ("fig12", _fig12),
        ("table3", _table3),
    ):
        if name in figures:
            canvas = draw(figures[name].numbers)
            path = folder / f"{name}.png"
            canvas.savefig(path, dpi=DPI, metadata={"Software": None})
            plt.close(canvas)
            made.append((name, path))
    return made


def _fig7(numbers: Mapping[str, Any]) -> Canvas:
    canvas, axes = plt.subplots(len(MODELS), 3, figsize=(12, 8.4), layout="constrained")
    for row, model in zip(axes, MODELS, strict=True):
        table = paper()["fig7"][model]
        cells = numbers[model]["cells"]
        for ax, tokens_max in zip(row, table["tokens_max"], strict=True):
            mine = [cell for cell in cells if cell["tokens_max"] == tokens_max]
            counts = list(dict.fromkeys(cell["sessions"] for cell in mine))
            for place, system in enumerate(GRID_SYSTEMS):
                of_system = [cell for cell in mine if cell["system"] == system]
                _bars(ax, place, system, [c["jct_s"] for c in of_system], [c["paper_jct_s"] for c in of_system])
            ax.set_xticks(range(len(counts)), [f"{count:,}" for count in counts])
            ax.set_title(f"{model}, {table['shape']}, MaxLen {tokens_max // 1024}K", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("sessions")
    for ax in axes[:, 0]:
        ax.set_ylabel("JCT, s")
    _legend(axes[0, 0])
    return canvas


def _fig8(numbers: Mapping[str, Any]) -> Canvas:
    canvas, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    shapes = paper()["fig8"]["shapes"]
    for place, system in enumerate(PAIR):
        ours = [numbers[shape]["jct_s"][system] for shape in shapes]
        _bars(ax, place, system, ours, [numbers[shape]["paper_jct_s"][system] for shape in shapes])
    ax.set_xticks(range(len(shapes)), shapes)
    ax.set_ylabel("JCT, s")
    ax.set_title("ds-27b, 64K, 2,048 sessions", fontsize=9)
    _legend(ax)
    return canvas


def _fig9(numbers: Mapping[str, Any]) -> Canvas:
    canvas, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for ax, kind in zip(axes, ("append", "gen"), strict=True):
        table = paper()["fig9"][kind]
        for system, jct_s in numbers[kind]["jct_s"].items():
            _line(ax, system, numbers[kind]["scale"], jct_s, table["scale"], table[system])
        ax.set_xlabel(f"{kind} x")
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("JCT, s")
    _legend(axes[0])
    return canvas


def _fig10(numbers: Mapping[str, Any]) -> Canvas:
    canvas, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    names = (("ttft_s", "TTFT, s"), ("ttst_s", "TTST, s"), ("tpot_s", "TPOT, s"))
    for row, model in zip(axes, numbers, strict=True):
        table = paper()["fig10"][model]
        for ax, (name, label) in zip(row, names, strict=True):
            for system in PAIR:
                curve = numbers[model]["curves"][system]
                theirs = table.get(system, ()) if name == "ttft_s" else ()
                _line(ax, system, curve["aps"], curve[name], table.get("aps", ())[: len(theirs)], theirs)
            if name != "ttst_s":
                ax.axhline(table[f"slo_{name}"], color="#b03a2e", linewidth=0.8, linestyle="--")
            if name == "ttft_s":
                ax.set_ylim(0, 6)
            else:
                ax.set_ylim(0, 1.15 * ax.dataLim.y1)
            ax.set_title(f"{model}: {label}", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("sessions arriving per second")
    _legend(axes[0, 0])
    return canvas


def _fig11(numbers: Mapping[str, Any]) -> Canvas:
    canvas, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    labels = [f"{aps:g}" for aps in numbers["aps"]]
    bottom = [0.0] * len(labels)
    for part, color in zip(("scheduling", "buffer", "read", "prefill"), COLORS.values(), strict=False):
        ax.bar(labels, numbers[part], bottom=bottom, width=0.5, label=part, color=color)
        bottom = [below + value for below, value in zip(bottom, numbers[part], strict=True)]
    ax.set_xlabel("sessions arriving per second")
    ax.set_ylabel("mean TTFT, s")
    ax.set_ylim(top=1.2 * max(bottom))
    ax.legend(loc="upper center", ncols=4, fontsize=8, frameon=False)
    return canvas


def _fig12(numbers: Mapping[str, Any]) -> Canvas:
    canvas, ax = plt.subplots(figsize=(5.8, 3.4), layout="constrained")
    table = paper()["fig12"]
    for place, system in enumerate(ABLATION):
        _bars(ax, place, system, numbers["jct_s"][system], table[system], width=0.2)
    ax.set_xticks(range(len(table["sessions"])), [f"{count:,}" for count in table["sessions"]])
    ax.set_xlabel("sessions")
    ax.set_ylabel("JCT, s")
    _legend(ax)
    return canvas


def _table3(numbers: Mapping[str, Any]) -> Canvas:
    canvas, ax = plt.subplots(figsize=(4.2, 3.2), layout="constrained")
    shapes = list(numbers["offline_jct_s"])
    theirs = [paper()["table3"]["offline"][shape]["jct_s"] for shape in shapes]
    _bars(ax, 1, "dualpath", list(numbers["offline_jct_s"].values()), theirs)
    ax.set_xticks(range(len(shapes)), shapes)
    ax.set_ylabel("JCT, s")
    _legend(ax)
    return canvas


def _bars(
    ax: Axes, place: int, system: str, ours: Sequence[float], theirs: Sequence[float], *, width: float = WIDTH
) -> None:
    at = [number + (place - 1) * width for number in range(len(ours))]
    ax.bar(at, ours, width=width * 0.94, color=COLORS[system], label=system)
    ax.plot(at, theirs, linestyle="", marker="_", markersize=9, markeredgewidth=1.8, color="black")


def _line(
    ax: Axes, system: str, x: Sequence[float], ours: Sequence[float], x_theirs: Sequence[float], theirs: Sequence[float]
) -> None:
    ax.plot(x, ours, color=COLORS[system], marker="o", markersize=3, label=system)
    if theirs:
        ax.plot(x_theirs, theirs, linestyle="", marker="_", markersize=9, markeredgewidth=1.8, color="black")


def _legend(ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    paper_mark = Line2D([], [], linestyle="", marker="_", markersize=9, markeredgewidth=1.8, color="black")
    ax.legend([*handles, paper_mark], [*labels, "paper"], fontsize=8, frameon=False)
