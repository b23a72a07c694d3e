"""`dualpath scheduler`: the central scheduler of one cell."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dualpath.model.errors import DualPathError

EPILOG = """Examples:

  dualpath scheduler                                    # its own Redis in .dualpath/scheduler

  dualpath scheduler --redis-url redis://redis.internal:6379/0 --listen 0.0.0.0:7700

  dualpath scheduler --redis-url redis+sentinel://s1:26379,s2:26379,s3:26379/cell/0 --replicas-min 1

A second scheduler with the same --cell and --redis-url stands by and takes over when the first one is lost.

Exit codes: 0 stopped, 2 wrong settings, 3 could not start."""


def register(app: typer.Typer) -> None:
    """Add this part's commands to the one CLI."""
    app.command("scheduler", help="Run the scheduler of one cell.", epilog=EPILOG)(scheduler)


def scheduler(
    listen: Annotated[str | None, typer.Option(help="host:port for clients and agents")] = None,
    advertise: Annotated[str | None, typer.Option(help="host:port to dial this scheduler; default: --listen")] = None,
    http: Annotated[str | None, typer.Option(help="host:port for probes, /metrics and /status; off by default")] = None,
    cell: Annotated[str | None, typer.Option(help="name of the cell")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of the embedded Redis")] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="use this Redis (or redis+sentinel://host:port,host:port/service) for the truth")
    ] = None,
    replicas_min: Annotated[
        int | None, typer.Option(help="Redis replicas that must have a write before it counts")
    ] = None,
    store: Annotated[str | None, typer.Option(help="redis or memory (memory loses all turns at exit)")] = None,
    allow_unsafe_redis: Annotated[
        bool | None, typer.Option("--allow-unsafe-redis", help="take a Redis that could lose accepted turns")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="dualpath, basic or roundrobin")] = None,
    alpha_tokens: Annotated[int | None, typer.Option(help="read queue up to which a node counts as short")] = None,
    beta_tokens: Annotated[int | None, typer.Option(help="open tokens above which a PE gets nothing")] = None,
    high_mark_factor: Annotated[float | None, typer.Option(help="headroom of a DE over the even share")] = None,
    skip_ahead_turns: Annotated[
        int | None,
        typer.Option(help="turns without HBM that a fetch of a DE group passes over; 0 is the paper"),
    ] = None,
    overtakes_max: Annotated[
        int | None, typer.Option(help="times a turn may be overtaken (skip-ahead, order fair) before it goes first")
    ] = None,
    order: Annotated[str | None, typer.Option(help="fifo (exact), or fair among tenants by prompt tokens")] = None,
    tenant_turns_max: Annotated[int | None, typer.Option(help="turns in line of one tenant; 0: no bound")] = None,
    tenant_tokens_max: Annotated[
        int | None, typer.Option(help="prompt tokens in line of one tenant; 0: no bound")
    ] = None,
    slow_start_s: Annotated[
        float | None, typer.Option(help="time over which an engine that has just come gets its full share")
    ] = None,
    lease_s: Annotated[float | None, typer.Option(help="silence after which a group loses its turns")] = None,
    store_lease_s: Annotated[float | None, typer.Option(help="lease of the active scheduler in the store")] = None,
    attempts_max: Annotated[int | None, typer.Option(help="attempts of a turn before it fails as poison")] = None,
    waiting_turns_max: Annotated[int | None, typer.Option(help="turns in line before submits are refused")] = None,
    waiting_tokens_max: Annotated[
        int | None, typer.Option(help="prompt tokens in line before submits are refused")
    ] = None,
    waiting_bytes_max: Annotated[
        int | None, typer.Option(help="bytes of prompts in line before submits are refused")
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="written as JSON once the scheduler serves")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
) -> None:
    given = {name: value for name, value in locals().items() if value is not None}
    from dualpath.scheduler.app import serve
    from dualpath.scheduler.settings import SchedulerSettings
    from dualpath.scheduler.telemetry import configure_logs

    try:
        settings = SchedulerSettings(**given)
        configure_logs(settings.log_level)
        asyncio.run(serve(settings))
    except ValidationError as error:
        for problem in error.errors():
            field = "--" + ".".join(str(part) for part in problem["loc"]).replace("_", "-") if problem["loc"] else ""
            print(f"error: {field} {problem['msg']} (found {problem.get('input')!r})", file=sys.stderr)
        raise typer.Exit(2) from error
    except DualPathError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3) from error


def main() -> None:
    """Entry of `python -m dualpath.scheduler`."""
    typer.run(scheduler)
