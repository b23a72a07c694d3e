"""`dualpath demo`: real turns through a small real cell, one path against two, every token checked.

A 1P2D cell with the reference transformer and emulated storage NICs replays turns of a recorded coding agent, first
with `basic`, then with `dualpath`; then each turn's tokens are compared with a full recompute that uses no cache.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dualpath.cli.cell_config import CellConfig, load_config
from dualpath.cli.local_cell import LocalCell
from dualpath.cli.replay import ReplayRun, TurnRecord, replay, speedup
from dualpath.client import Client
from dualpath.client.traces import TraceSession, read_trace, select
from dualpath.model.errors import Broken

VOCAB_SIZE = 2048
SCALE = 0.02  # of the recorded lengths: contexts of about 1,500 to 2,000 tokens
SNIC_MB_PER_S = 8.0
CNIC_MB_PER_S = 400.0


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """`figures` by policy, and how many turns' tokens equal the recompute."""

    figures: dict[str, dict[str, object]]
    checked: int
    equal: int

    @property
    def report(self) -> dict[str, object]:
        return {
            "policies": self.figures,
            "speedup": speedup(self.figures),
            "tokens_checked": self.checked,
            "tokens_equal": self.equal,
        }


def demo_sessions(*, sessions: int, turns_max: int) -> tuple[TraceSession, ...]:
    """Sessions of the packaged excerpt of a Claude Code trace."""
    with resources.as_file(resources.files("dualpath.cli") / "data" / "claude_code_excerpt.csv") as path:
        return select(read_trace(path, scale=SCALE), count=sessions, turns_max=turns_max, context_max=4000)


async def run_demo(
    *, sessions: int, turns_max: int, say: Callable[[str], None], progress: Callable[[str, int, int], None]
) -> DemoOutcome:
    """Raises what stops the cell or a replay; unequal tokens are in the outcome."""
    chosen = demo_sessions(sessions=sessions, turns_max=turns_max)
    with tempfile.TemporaryDirectory(prefix="dualpath-demo-") as folder:
        config = load_config(
            None,
            shape="1P2D",
            address="127.0.0.1:0",
            policy="basic",
            data=Path(folder),
            engine_options={"vocab_size": VOCAB_SIZE},
            snic_mb_per_s=SNIC_MB_PER_S,
            cnic_mb_per_s=CNIC_MB_PER_S,
            alpha_tokens=12_000,
            beta_tokens=60_000,
        )
        say("starting a cell: scheduler, 1 prefill node, 2 decode nodes")
        async with LocalCell(config) as cell:
            runs = await _both_policies(cell.address, chosen, say, progress)
    say("checking every turn against a full recompute without a cache")
    turns = [turn for run in runs for turn in run.turns]
    checked, equal = await check_tokens(turns, config, lambda done: progress("checking", done, len(turns)))
    return DemoOutcome({run.policy: run.figures() for run in runs}, checked, equal)


async def _both_policies(
    address: str,
    sessions: Sequence[TraceSession],
    say: Callable[[str], None],
    progress: Callable[[str, int, int], None],
) -> list[ReplayRun]:
    runs = []
    async with Client(address) as client:
        for seed, policy in enumerate(("basic", "dualpath")):
            await client.set_policy(policy)
            say(f"replaying {sum(len(s.turns) for s in sessions)} turns of {len(sessions)} agents with {policy}")
            runs.append(
                await replay(
                    client,
                    sessions,
                    seed=seed,
                    vocab_size=VOCAB_SIZE,
                    keep_tokens=True,
                    progress=lambda done, total, name=policy: progress(name, done, total),  # type: ignore[misc]
                )
            )
    return runs


async def check_tokens(
    turns: Sequence[TurnRecord], config: CellConfig, progress: Callable[[int], None]
) -> tuple[int, int]:
    """(turns checked, turns equal): two checkers of the engine's own, each with half of the turns."""
    halves = [turns[0::2], turns[1::2]]
    done = [0, 0]

    async def check(half: int) -> tuple[int, int]:
        async with aclosing(_checker(halves[half], config)) as counts:
            async for count in counts:
                if isinstance(count, tuple):
                    return count
                done[half] = count
                progress(sum(done))
        raise Broken("the checker ended without a verdict", reason="CHECKER")

    results = await asyncio.gather(*(check(half) for half in (0, 1)))
    return sum(checked for checked, _ in results), sum(equal for _, equal in results)


async def _checker(turns: Sequence[TurnRecord], config: CellConfig) -> AsyncGenerator[int | tuple[int, int], None]:
    """Run one checker process; yields counts as it goes, then (checked, equal)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dualpath.engine_agent.verify",
        "--engine",
        config.engine,
        "--engine-options",
        json.dumps(config.engine_options),
        "--progress",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    feeding = asyncio.create_task(_feed(process.stdin, turns))
    try:
        async for line in process.stdout:
            value = json.loads(line)
            yield value["done"] if "done" in value else (value["checked"], value["equal"])
        await feeding
        await process.wait()
    finally:
        feeding.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _feed(stdin: asyncio.StreamWriter, turns: Sequence[TurnRecord]) -> None:
    for turn in turns:
        stdin.write(json.dumps({"prompt": turn.prompt, "generated": turn.generated}).encode() + b"\n")
        await stdin.drain()
    stdin.close()
