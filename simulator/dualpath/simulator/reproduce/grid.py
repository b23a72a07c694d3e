"""The runs behind each table and figure of the paper's evaluation (§8), as cases; equal runs are one case."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from dualpath.simulator.runs.case import Case, Workload

MODELS = ("ds-660b", "ds-27b", "qwen-32b")
GRID_SYSTEMS = ("oracle", "dualpath", "basic")
PAIR = ("dualpath", "basic")
ABLATION = ("basic", "layerwise", "alternating", "dualpath")

# Online: arrivals go on for an hour; latencies are of turns submitted in its second half. At scale (Table 3), where a
# second of arrivals is twenty times the turns, both shapes get the same shorter while.
ONLINE_S, ONLINE_WARM_UP_S = 3600.0, 1800.0
SCALE_ONLINE_S, SCALE_ONLINE_WARM_UP_S = 800.0, 500.0
# On a grid of 0.05 sessions per second up to the first rate past each knee.
ONLINE_APS: Mapping[tuple[str, str], Sequence[float]] = {
    ("ds-660b", "dualpath"): (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    ("ds-660b", "basic"): (0.1, 0.15, 0.2, 0.25),
    ("ds-27b", "dualpath"): (0.2, 0.4, 0.45, 0.5, 0.55),
    ("ds-27b", "basic"): (0.2, 0.25, 0.3, 0.35),
}


@cache
def paper() -> Mapping[str, Any]:
    """The paper's numbers (paper.toml)."""
    text = (resources.files(__package__) / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True, slots=True)
class Cell:
    """A bar of Fig. 7. `is_fitted`: the profile's costs were fitted to it."""

    model: str
    system: str
    tokens_max: int
    sessions: int
    jct_s: float
    is_fitted: bool

    @property
    def case(self) -> Case:
        shape = str(paper()["fig7"][self.model]["shape"])
        return offline_case(self.model, self.system, shape, self.tokens_max, self.sessions)


def fig7_cells(model: str) -> Iterator[Cell]:
    """All bars of a model, row by row."""
    table, fitted = paper()["fig7"][model], paper()["fit"][model]
    for row, counts in enumerate(table["sessions"]):
        for column, tokens_max in enumerate(table["tokens_max"]):
            for system in GRID_SYSTEMS:
                count = counts[column]
                yield Cell(model, system, tokens_max, count, table[system][row][column], count in fitted)


def offline_case(
    model: str,
    system: str,
    shape: str,
    tokens_max: int,
    sessions: int,
    *,
    append_scale: float = 1.0,
    gen_scale: float = 1.0,
) -> Case:
    """All sessions at once, to the end of all."""
    workload = Workload(tokens_max, sessions, append_scale=append_scale, gen_scale=gen_scale)
    return Case(model, system, shape, workload)


def online_case(
    model: str,
    system: str,
    shape: str,
    aps: float,
    *,
    until_s: float = ONLINE_S,
    warm_up_s: float = ONLINE_WARM_UP_S,
    tokens_max: int = 65_536,
) -> Case:
    """Poisson arrivals until the run is stopped; so many sessions that they never run out."""
    return Case(model, system, shape, Workload(tokens_max, 0, aps=aps, until_s=until_s, warm_up_s=warm_up_s))


def shape_case(shape: str, system: str) -> Case:
    """Fig. 8."""
    table = paper()["fig8"]
    return offline_case(table["model"], system, shape, table["tokens_max"], table["sessions"])


def scaled_case(kind: str, scale: float, system: str) -> Case:
    """Fig. 9; kind: append or gen."""
    table = paper()["fig9"][kind]
    shape = paper()["fig7"][table["model"]]["shape"]
    return offline_case(
        table["model"],
        system,
        shape,
        table["tokens_max"],
        table["sessions"],
        append_scale=scale if kind == "append" else 1.0,
        gen_scale=scale if kind == "gen" else 1.0,
    )


def ablation_case(system: str, sessions: int) -> Case:
    """Fig. 12, and Fig. 14 and 15 at 1,024 sessions."""
    table = paper()["fig12"]
    shape = paper()["fig7"][table["model"]]["shape"]
    return offline_case(table["model"], system, shape, table["tokens_max"], sessions)


def table3_offline_case(shape: str) -> Case:
    table = paper()["table3"]["offline"]
    return offline_case(table["model"], "dualpath", shape, table["tokens_max"], table[shape]["sessions"])


def table3_online_case(shape: str) -> Case:
    table = paper()["table3"]["online"]
    return online_case(
        table["model"],
        "dualpath",
        shape,
        table[shape]["aps"],
        until_s=SCALE_ONLINE_S,
        warm_up_s=SCALE_ONLINE_WARM_UP_S,
        tokens_max=table["tokens_max"],
    )


def table3_shapes(kind: str) -> tuple[str, ...]:
    return tuple(name for name in paper()["table3"][kind] if name[0].isdigit())


def figure_cases(figure: str) -> list[Case]:
    """Every run that a figure or table needs."""
    match figure:
        case "fig7":
            return [cell.case for model in MODELS for cell in fig7_cells(model)]
        case "fig8":
            return [shape_case(shape, system) for shape in paper()["fig8"]["shapes"] for system in PAIR]
        case "fig9":
            return [
                scaled_case(kind, scale, system)
                for kind in ("append", "gen")
                for scale in paper()["fig9"][kind]["scale"]
                for system in GRID_SYSTEMS
                if system in paper()["fig9"][kind]
            ]
        case "fig10":
            return [
                online_case(model, system, paper()["fig10"][model]["shape"], aps)
                for (model, system), rates in ONLINE_APS.items()
                for aps in rates
            ]
        case "fig11":
            return [online_case("ds-660b", "dualpath", "2P4D", aps) for aps in paper()["fig11"]["aps"]]
        case "fig12":
            return [ablation_case(system, count) for count in paper()["fig12"]["sessions"] for system in ABLATION]
        case "fig14" | "fig15":
            return [ablation_case(system, paper()["fig12"]["sessions"][0]) for system in ("alternating", "dualpath")]
        case "table3":
            return [table3_offline_case(shape) for shape in table3_shapes("offline")] + [
                table3_online_case(shape) for shape in table3_shapes("online")
            ]
        case "beyond":
            return [beyond_case(load, system) for load in BEYOND_LOADS for system in ("dualpath", *BEYOND)]
        case _:
            raise KeyError(figure)


FIGURES = ("fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig14", "fig15", "table3")
MORE_FIGURES = ("beyond",)  # not of the paper

# What goes beyond the paper, and the loads on which it is measured against dualpath.
BEYOND = ("event", "weighted", "split", "joint", "event-split")
BEYOND_LOADS: Mapping[str, Case] = {
    "660B 2P4D, 64K, 1,024": Case("ds-660b", "dualpath", "2P4D", Workload(65_536, 1024)),
    "660B 2P4D, 32K, 1,024": Case("ds-660b", "dualpath", "2P4D", Workload(32_768, 1024)),
    "27B 1P1D, 64K, 1,024": Case("ds-27b", "dualpath", "1P1D", Workload(65_536, 1024)),
    "27B 2P1D, 64K, 1,024": Case("ds-27b", "dualpath", "2P1D", Workload(65_536, 1024)),
    "27B 1P2D, 64K, 1,024": Case("ds-27b", "dualpath", "1P2D", Workload(65_536, 1024)),
    "Qwen 1P2D, 48K, 256": Case("qwen-32b", "dualpath", "1P2D", Workload(49_152, 256)),
    "27B 2P2D, 64K, 1,024, a slow NIC": Case(
        "ds-27b", "dualpath", "2P2D", Workload(65_536, 1024), slow_nics=((0, 2.0),)
    ),
    "660B 2P4D, 64K, 0.15 APS": online_case("ds-660b", "dualpath", "2P4D", 0.15, until_s=1800.0, warm_up_s=600.0),
    "660B 2P4D, 64K, 0.45 APS": online_case("ds-660b", "dualpath", "2P4D", 0.45, until_s=2400.0, warm_up_s=1200.0),
    "27B 1P1D, 64K, 0.4 APS": online_case("ds-27b", "dualpath", "1P1D", 0.4, until_s=2400.0, warm_up_s=1200.0),
}


def beyond_case(load: str, system: str) -> Case:
    return replace(BEYOND_LOADS[load], system=system)


def held_out_jct_s() -> Mapping[Case, float]:
    """The paper's JCT of every run that was not looked at while costs were chosen; each run once.

    Left: what Fig. 7 does not name as fitted, the generations of Fig. 9, and the cluster of Table 3.
    """
    table = paper()["fig9"]["gen"]
    shown = {
        scaled_case("gen", scale, system): jct_s
        for system in PAIR
        for scale, jct_s in zip(table["scale"], table[system], strict=True)
    }
    for shape in table3_shapes("offline"):
        shown[table3_offline_case(shape)] = paper()["table3"]["offline"][shape]["jct_s"]
    cells = [cell for model in MODELS for cell in fig7_cells(model)]
    shown |= {cell.case: cell.jct_s for cell in cells}
    return {case: jct_s for case, jct_s in shown.items() if case not in {cell.case for cell in cells if cell.is_fitted}}
