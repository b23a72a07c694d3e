"""The command group `dualpath sim`."""

import typer

from dualpath.simulator.commands import chaos, plan, reproduce, run, tune


def register(app: typer.Typer) -> None:
    """Add `sim` to the one CLI."""
    sim = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Simulate a cluster under our real policies: try, compare, tune, plan, and reproduce the paper.",
    )
    sim.command("run", help="One workload under one system.", epilog=run.RUN_EPILOG)(run.run)
    sim.command("compare", help="One workload under several systems or policies.", epilog=run.COMPARE_EPILOG)(
        run.compare
    )
    sim.command("tune", help="Search alpha, beta, headroom, quota and fetch cadence.", epilog=tune.EPILOG)(tune.tune)
    sim.command("plan", help="The best split of nodes, what bounds each, and the sizes needed.", epilog=plan.EPILOG)(
        plan.plan
    )
    sim.command("reproduce", help="Every figure of the paper's evaluation, beside its numbers.",
                epilog=reproduce.EPILOG)(reproduce.reproduce)  # fmt: skip
    sim.command("chaos", help="The whole scheduler under faults, judged by laws.", epilog=chaos.EPILOG)(chaos.chaos)
    app.add_typer(sim, name="sim")
