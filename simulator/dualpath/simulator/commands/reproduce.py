"""`dualpath sim reproduce`: the paper's evaluation, every figure, beside the paper's numbers."""

import time
from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli import render
from dualpath.model.errors import Rejected
from dualpath.simulator.commands import options
from dualpath.simulator.commands.tables import printed
from dualpath.simulator.reproduce.grid import FIGURES, MORE_FIGURES, figure_cases
from dualpath.simulator.reproduce.report import draw, headline, numbers_of, page
from dualpath.simulator.runs.pool import load_kept, run_cases

EPILOG = """About 30 million turns: about twenty minutes on one core. With --keep, what has ended stays after Ctrl-C,
and the same command goes on from there:

  dualpath sim reproduce --keep build/reproduce --out repro.json

  dualpath sim reproduce --only fig12 --only fig14        # a part of it

  dualpath sim reproduce --only beyond                    # what goes beyond the paper, against dualpath
"""
Only = Annotated[
    list[str] | None, typer.Option(help=f"of {', '.join(FIGURES)}, beyond; repeatable; default: the paper's")
]
Docs = Annotated[Path | None, typer.Option(help="folder in which to write reproduction.md and its plots")]


def reproduce(
    only: Only = None,
    out: options.Out = None,
    docs: Docs = None,
    keep: options.Keep = None,
    jobs: options.Jobs = 0,
    as_json: options.Json = False,
) -> None:
    names = tuple(dict.fromkeys(only or FIGURES))
    for name in names:
        if name not in (*FIGURES, *MORE_FIGURES):
            wanted = ", ".join((*FIGURES, *MORE_FIGURES))
            raise Rejected(f"figure {name!r} is unknown, wanted one of {wanted}", field="only")
    cases = [case for name in names for case in figure_cases(name)]
    began_s = time.monotonic()
    with options.keeping("reproducing", keep, quiet=as_json) as told:
        results = run_cases(cases, jobs=options.jobs_of(jobs), kept=keep, told=told)
    # the page shows all that there is: what was run before is in the kept results
    results |= load_kept([case for name in (*FIGURES, *MORE_FIGURES) for case in figure_cases(name)], keep)
    figures = draw(results, (*FIGURES, *MORE_FIGURES))
    numbers = numbers_of(figures, results)
    options.tell(numbers, out, as_json=as_json)
    if docs is not None:
        from dualpath.simulator.reproduce.plots import plot_all  # matplotlib takes a second to load

        images = [(name, f"images/{path.name}") for name, path in plot_all(figures, docs / "images")]
        (docs / "reproduction.md").write_text(page(figures, numbers, images))
    if as_json:
        return
    for table in [table for figure in figures.values() for table in figure.tables] + [headline(numbers)]:
        render.console.print(printed(table))
    turns = sum(result["turns"] for result in results.values())
    render.console.print(f"{len(results)} runs, {turns:,} turns, {time.monotonic() - began_s:.0f} s")
