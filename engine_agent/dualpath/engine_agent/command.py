"""`dualpath agent`: one node of a cell."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dualpath.model.errors import DualPathError

EPILOG = """Examples:

  dualpath agent --role prefill --node-id p0 --group-id prefill-0 --storage /mnt/3fs/kv

  dualpath agent --role decode --node-id d0 --group-id decode-0 --storage /mnt/3fs/kv --hbm-tokens 500000
"""


def register(app: typer.Typer) -> None:
    """Add this part's commands to the one CLI."""
    app.command("agent", help="Run the agent of one node (prefill or decode).", epilog=EPILOG)(agent)


def agent(
    role: Annotated[str, typer.Option(help="prefill or decode")],
    node_id: Annotated[str, typer.Option(help="name of this node, unique in the cell")],
    group_id: Annotated[str, typer.Option(help="engines that fetch together; all prefill or all decode")],
    scheduler: Annotated[str | None, typer.Option(help="host:port of the scheduler, several with commas")] = None,
    leader: Annotated[str | None, typer.Option(help="host:port of the group's leader node, if not this")] = None,
    group_nodes: Annotated[int | None, typer.Option(help="nodes of the group that must be there at start")] = None,
    cell: Annotated[str | None, typer.Option(help="name of the cell")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port for peers; port 0 takes a free one")] = None,
    advertise: Annotated[str | None, typer.Option(help="host:port that peers dial, if not the listening one")] = None,
    engines: Annotated[int | None, typer.Option(help="engines (GPUs) of this node")] = None,
    engine: Annotated[str | None, typer.Option(help="compute engine: reference, emulated")] = None,
    engine_options: Annotated[str | None, typer.Option(help="options of the engine as JSON")] = None,
    storage: Annotated[Path | None, typer.Option(help="directory of KV blocks, shared by all nodes")] = None,
    durable_storage: Annotated[bool | None, typer.Option(help="fsync every block")] = None,
    data: Annotated[Path | None, typer.Option(help="folder for this agent's own files")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="written as JSON once the scheduler has welcomed it")] = None,
    snic_bytes_per_s: Annotated[float | None, typer.Option(help="emulate a storage NIC of this rate")] = None,
    cnic_bytes_per_s: Annotated[float | None, typer.Option(help="emulate a compute NIC of this rate")] = None,
    buffer_bytes: Annotated[int | None, typer.Option(help="size of the PE or DE buffer")] = None,
    hbm_tokens: Annotated[int | None, typer.Option(help="KV tokens an engine's HBM holds")] = None,
    quota_s: Annotated[float | None, typer.Option(help="compute quota of one forward batch, seconds")] = None,
    peer_wait_s: Annotated[float | None, typer.Option(help="longest wait for the other node of a pair")] = None,
    drain_s: Annotated[float | None, typer.Option(help="time running turns get when the agent stops")] = None,
) -> None:
    given = {name: value for name, value in locals().items() if value is not None}
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy loads: engines bring their own threads
    from dualpath.engine_agent.app import serve
    from dualpath.engine_agent.settings import AgentSettings

    try:
        asyncio.run(serve(AgentSettings(**given)))
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in problem["loc"]).replace("_", "-")
            print(f"error: --{field}: {problem['msg']} (found {problem.get('input')!r})", file=sys.stderr)
        raise typer.Exit(2) from error
    except DualPathError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3) from error


def main() -> None:
    """Entry of `python -m dualpath.engine_agent`."""
    typer.run(agent)
