"""Commands of the client side: up, demo, submit, replay, status, explain, cancel, version."""

import asyncio
import json
import random
import signal
import sys
import time
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.live import Live

from dualpath.cli import render
from dualpath.cli.cell_config import load_config
from dualpath.cli.demo import run_demo
from dualpath.cli.local_cell import LocalCell
from dualpath.cli.replay import ReplayRun, replay, speedup, verdict
from dualpath.client import Client, TurnSpec
from dualpath.client.traces import TraceSession, read_trace, select
from dualpath.model.errors import Rejected

Address = Annotated[
    str, typer.Option(envvar="DUALPATH_ADDRESS", help="host:port of the scheduler, several with commas")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
DEFAULT_ADDRESS = "127.0.0.1:7700"
WATCH_S = 0.5

UP_EPILOG = """A TOML file sets what differs from the default, for example:

  shape = "2P4D"
  snic_mb_per_s = 50        # rate of the emulated storage NICs; 0: as fast as the disk

  [engine_options]
  hidden_size = 256
"""
REPLAY_EPILOG = """Formats (found by content; .gz is fine): Claude Code CSV or JSON, Mooncake JSONL, and simple JSONL,
one session per line: {"turns": [{"append": 300, "gen": 20}, {"append": 40, "gen": 15}]}

  dualpath replay trace.csv.gz --sessions 8 --scale 0.02 --compare
"""


def register(app: typer.Typer) -> None:
    """Add this part's commands to the one CLI."""
    app.command("up", help="Run a whole cell on this machine until Ctrl-C.", epilog=UP_EPILOG)(up)
    app.command("demo", help="Real turns through a small cell, one path against two, every token checked.")(demo)
    app.command("submit", help="Submit one turn and wait for its tokens.")(submit)
    app.command("replay", help="Replay a trace of agent sessions.", epilog=REPLAY_EPILOG)(replay_command)
    app.command("status", help="Engines, queues and NICs of a cell.")(status)
    app.command("explain", help="Every decision about a turn, with the numbers it saw.")(explain)
    app.command("cancel", help="Cancel a turn.")(cancel)
    app.command("version", help="Print the version.")(version)


def up(
    config: Annotated[Path | None, typer.Argument(help="TOML file; without one a 1P2D cell")] = None,
    shape: Annotated[str | None, typer.Option(help="nodes, like 1P2D")] = None,
    policy: Annotated[str | None, typer.Option(help="dualpath, basic or roundrobin")] = None,
    address: Annotated[str | None, typer.Option(help="host:port of the scheduler")] = None,
    data: Annotated[Path | None, typer.Option(help="folder for queues, KV blocks and logs")] = None,
    engine: Annotated[str | None, typer.Option(help="reference or emulated")] = None,
    snic_mb_per_s: Annotated[
        float | None, typer.Option(help="rate of the emulated storage NICs; 0: as fast as the disk")
    ] = None,
    redis_url: Annotated[str | None, typer.Option(help="use this Redis instead of an embedded one")] = None,
    http: Annotated[str | None, typer.Option(help="host:port for /metrics and /status")] = None,
    as_json: Json = False,
) -> None:
    settings = load_config(
        config,
        shape=shape,
        policy=policy,
        address=address,
        data=data,
        engine=engine,
        snic_mb_per_s=snic_mb_per_s,
        redis_url=redis_url,
        http=http,
    )
    asyncio.run(_up(LocalCell(settings), as_json))


async def _up(cell: LocalCell, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(cell.__aenter__())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        starting.result()
        _announce(cell, as_json)
        watching = asyncio.create_task(cell.supervisor.watch())
        await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        watching.cancel()
        print("stopping: agents drain, then the scheduler", file=sys.stderr)
    finally:
        stopping.cancel()
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await cell.__aexit__(None, None, None)


def _announce(cell: LocalCell, as_json: bool) -> None:
    children = {child.spec.name: child.pid for child in cell.supervisor.children}
    if as_json:
        body = {"address": cell.address, "shape": cell.config.shape, "data": str(cell.data), "pids": children}
        print(json.dumps(body), flush=True)
        return
    print(f"cell {cell.config.shape} is up: scheduler on {cell.address}, policy {cell.config.policy}")
    print(f"  {cell.config.engine} engine, logs in {cell.data / 'logs'}")
    print("  in another terminal: dualpath submit --random 300 | dualpath status --watch | dualpath replay TRACE")
    print("  Ctrl-C stops everything", flush=True)


def demo(
    out: Annotated[Path | None, typer.Option(help="write the figures as JSON")] = None,
    sessions: Annotated[int, typer.Option(help="agents at once", min=1, max=12)] = 8,
    turns: Annotated[int, typer.Option(help="turns of each agent at most", min=2, max=20)] = 12,
    as_json: Json = False,
) -> None:
    bars = _Bars(quiet=as_json)
    started_s = time.monotonic()
    outcome = asyncio.run(run_demo(sessions=sessions, turns_max=turns, say=bars.say, progress=bars.progress))
    bars.close()
    if out is not None:
        out.write_text(json.dumps(outcome.report, indent=2) + "\n")
    if as_json:
        render.print_json(outcome.report)
    else:
        render.console.print(render.replay_table(outcome.figures))
        render.console.print(f"tokens equal to full recompute: {outcome.equal}/{outcome.checked}")
        render.console.print(f"{verdict(outcome.figures)}  ({time.monotonic() - started_s:.0f} s in all)")
    if outcome.equal != outcome.checked or not outcome.checked:
        raise typer.Exit(1)


class _Bars:
    """One progress bar after the other."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._label = ""
        self._context: object = None
        self._line: render.ProgressLine | None = None

    def say(self, text: str) -> None:
        self.close()
        if not self._quiet:
            render.errors.print(text)

    def progress(self, label: str, done: int, total: int) -> None:
        if label != self._label:
            self.close()
            self._label = label
            self._context = render.progress_bar(label, total=total, quiet=self._quiet)
            self._line = self._context.__enter__()
        if self._line is not None:
            self._line(done, total)

    def close(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)  # type: ignore[attr-defined]
        self._context, self._line, self._label = None, None, ""


def submit(
    tokens: Annotated[str | None, typer.Option(help="prompt token ids, with commas")] = None,
    random_tokens: Annotated[int | None, typer.Option("--random", help="a prompt of this many random tokens")] = None,
    seed: Annotated[int, typer.Option(help="of the random tokens")] = 0,
    vocab_size: Annotated[int, typer.Option(help="of the random tokens")] = 2048,
    max_new_tokens: Annotated[int, typer.Option(help="tokens to generate at most")] = 16,
    session: Annotated[str, typer.Option(help="session id")] = "",
    deadline_s: Annotated[float, typer.Option(help="seconds the turn may take; 0: the scheduler's default")] = 0.0,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    if (tokens is None) == (random_tokens is None):
        raise Rejected("give either --tokens or --random", field="tokens")
    prompt = _parse_tokens(tokens) if tokens is not None else _random_tokens(random_tokens or 0, seed, vocab_size)
    spec = TurnSpec(prompt, max_new_tokens, session_id=session, deadline_s=deadline_s)
    asyncio.run(_submit(address, spec, as_json))


async def _submit(address: str, spec: TurnSpec, as_json: bool) -> None:
    async with Client(address, unreachable_s=5.0) as client:
        handle = await client.submit(spec)
        result = await handle.result()
    ended_s, first_s = handle.ended_at_s or 0.0, handle.first_token_at_s or handle.ended_at_s or 0.0
    body = {
        "turn_id": handle.turn_id,
        "end_reason": result.end_reason,
        "tokens": list(result.tokens),
        "hit_tokens": result.hit_tokens,
        "miss_tokens": result.miss_tokens,
        "context_tokens": result.context_tokens,
        "ttft_s": round(first_s - handle.submitted_at_s, 4),
        "total_s": round(ended_s - handle.submitted_at_s, 4),
        "message": result.message,
    }
    if as_json:
        render.print_json(body)
    else:
        print(" ".join(str(token) for token in result.tokens))
        print(
            f"turn {handle.turn_id}: {result.end_reason}, {result.hit_tokens} hit + {result.miss_tokens} miss tokens, "
            f"TTFT {body['ttft_s']} s, {body['total_s']} s in all {result.message}".rstrip(),
            file=sys.stderr,
        )
    if not result.tokens:
        raise typer.Exit(1)


def replay_command(
    trace: Annotated[Path, typer.Argument(help="file with recorded sessions")],
    sessions: Annotated[int | None, typer.Option(help="first N sessions, all at once", min=1)] = None,
    turns: Annotated[int | None, typer.Option(help="turns of each session at most", min=1)] = None,
    scale: Annotated[float, typer.Option(help="recorded lengths times this")] = 1.0,
    context_max: Annotated[int | None, typer.Option(help="cut a session before its context passes this")] = None,
    policy: Annotated[str | None, typer.Option(help="basic, dualpath or roundrobin; default: as the cell is")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="run basic, then dualpath")] = False,
    seed: Annotated[int | None, typer.Option(help="of the appended tokens; default: a new one each run")] = None,
    vocab_size: Annotated[int, typer.Option(help="of the model")] = 2048,
    out: Annotated[Path | None, typer.Option(help="write the figures as JSON")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    if compare and policy:
        raise Rejected("give either --compare or --policy", field="policy")
    chosen = select(read_trace(trace, scale=scale), count=sessions, turns_max=turns, context_max=context_max)
    if not chosen:
        raise Rejected(f"{trace}: no session is left after the given limits", field="trace")
    policies = ("basic", "dualpath") if compare else (policy,)
    first_seed = seed if seed is not None else random.SystemRandom().randrange(1 << 30)
    runs = asyncio.run(_replay(address, chosen, policies, first_seed, vocab_size, quiet=as_json))
    figures = {run.policy: run.figures() for run in runs}
    report: dict[str, object] = {"policies": figures, "seed": first_seed}
    if compare:
        report["speedup"] = speedup(figures)
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")
    if as_json:
        render.print_json(report)
        return
    render.console.print(render.replay_table(figures))
    for name, row in figures.items():
        render.console.print(f"{name}: {row['answered_once']}/{row['turns']} turns answered once")
    if compare:
        render.console.print(verdict(figures))


async def _replay(
    address: str,
    sessions: tuple[TraceSession, ...],
    policies: tuple[str | None, ...],
    seed: int,
    vocab_size: int,
    *,
    quiet: bool,
) -> list[ReplayRun]:
    """One run per policy, each with tokens of its own; the cell's policy is set back at the end."""
    total = sum(len(session.turns) for session in sessions)
    runs: list[ReplayRun] = []
    async with Client(address) as client:
        found = (await client.status()).policy
        try:
            for offset, policy in enumerate(policies):
                if policy is not None and (await client.status()).policy != policy:
                    await client.set_policy(policy)
                with render.progress_bar(policy or found, total=total, quiet=quiet) as bar:
                    runs.append(await replay(client, sessions, seed=seed + offset, vocab_size=vocab_size, progress=bar))
        finally:
            if any(policy is not None for policy in policies) and (await client.status()).running == 0:
                await client.set_policy(found)
    return runs


def status(
    watch: Annotated[bool, typer.Option("--watch", help="refresh until Ctrl-C")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: Json = False,
) -> None:
    asyncio.run(_status(address, watch, as_json))


async def _status(address: str, watch: bool, as_json: bool) -> None:
    async with Client(address) as client:
        if as_json:
            while True:
                body = MessageToDict(
                    await client.status(), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
                print(json.dumps(body) if watch else json.dumps(body, indent=2), flush=True)
                if not watch:
                    return
                await asyncio.sleep(WATCH_S)
        if not watch:
            render.console.print(render.status_table(await client.status()))
            return
        with Live(render.status_table(await client.status()), console=render.console, screen=False) as live:
            while True:
                await asyncio.sleep(WATCH_S)
                live.update(render.status_table(await client.status()))


def explain(turn: str, address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    explanation = asyncio.run(_with_client(address, "explain", turn))
    if as_json:
        render.print_json(MessageToDict(explanation, preserving_proto_field_name=True))
    else:
        print("\n".join(render.explanation_lines(explanation)))


def cancel(turn: str, address: Address = DEFAULT_ADDRESS, as_json: Json = False) -> None:
    record = asyncio.run(_with_client(address, "cancel", turn))
    if as_json:
        render.print_json(MessageToDict(record, preserving_proto_field_name=True))
    else:
        print(f"turn {record.turn_id}: {record.result.end_reason or 'running'}")


async def _with_client(address: str, method: str, turn: str):  # type: ignore[no-untyped-def]
    async with Client(address) as client:
        return await getattr(client, method)(turn)


def version(as_json: Json = False) -> None:
    number = package_version("dualpath")
    if as_json:
        render.print_json({"version": number})
    else:
        print(f"dualpath {number}")


def _parse_tokens(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise Rejected(f"--tokens: {error}; wanted numbers with commas", field="tokens") from error


def _random_tokens(count: int, seed: int, vocab_size: int) -> tuple[int, ...]:
    if count < 1:
        raise Rejected(f"--random is {count}, wanted at least 1", field="tokens")
    chance = random.Random(seed)
    return tuple(chance.randrange(vocab_size) for _ in range(count))
