"""The main claim, measured: replay of agent turns on emulated storage NICs, `basic` against `dualpath`, real bytes.

Everything is real but the GPU's arithmetic and the NICs' rates: processes, sockets, Redis, blocks on disk, transfers.
Both policies run in one cell, one after the other, on the same lengths with different tokens, so neither hits the KV
of the other. In the storage-bound regime the ideal speedup is the number of storage NICs over that of prefill nodes.

    python benchmarks/bench_main.py --out main.json
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from dualpath.cli.cell_config import load_config
from dualpath.cli.local_cell import LocalCell
from dualpath.cli.replay import ReplayRun, replay, speedup
from dualpath.client import Client
from dualpath.client.traces import TraceSession, TraceTurn

SHAPES = {"1P1D": 1.6, "1P2D": 2.2}  # shape -> least speedup wanted
SNIC_BALANCE_MAX = 1.25
LAYERS, BYTES_PER_TOKEN_LAYER = 8, 512  # 4 KiB of KV per token
SNIC_MB_PER_S, CNIC_MB_PER_S = 24.0, 400.0
SESSIONS, TURNS = 16, 8
FIRST_TOKENS, APPEND_TOKENS, GENERATED_TOKENS = 2000, 60, 8
VOCAB_SIZE = 32_000


def workload() -> tuple[TraceSession, ...]:
    """Sessions of agents: a long first prompt, then short appends to a context that is hit almost whole."""
    return tuple(
        TraceSession(
            f"agent {number}",
            (
                TraceTurn(FIRST_TOKENS + 64 * (number % 4), GENERATED_TOKENS),
                *(TraceTurn(APPEND_TOKENS + number, GENERATED_TOKENS) for _ in range(TURNS - 1)),
            ),
        )
        for number in range(SESSIONS)
    )


async def measure(shape: str, say: "Say") -> dict[str, object]:
    """Both policies in one cell of the given shape."""
    with tempfile.TemporaryDirectory(prefix="dualpath-bench-") as folder:
        config = load_config(
            None,
            shape=shape,
            address="127.0.0.1:0",
            policy="basic",
            data=Path(folder),
            engine="emulated",
            engine_options={
                "num_layers": LAYERS,
                "bytes_per_token_layer": BYTES_PER_TOKEN_LAYER,
                "vocab_size": VOCAB_SIZE,
                "prefill_s_per_token": 1e-6,
                "prefill_s_per_forward": 0.001,
                "decode_s_per_step": 0.001,
                "decode_s_per_turn": 0.0001,
            },
            snic_mb_per_s=SNIC_MB_PER_S,
            cnic_mb_per_s=CNIC_MB_PER_S,
            # alpha: what one storage NIC reads in 3 s; beta never binds here, storage does
            alpha_tokens=int(3 * SNIC_MB_PER_S * 1e6 / (LAYERS * BYTES_PER_TOKEN_LAYER)),
            beta_tokens=2_000_000,
            hbm_tokens=1_000_000,
            buffer_mb=1024,
        )
        runs: dict[str, ReplayRun] = {}
        async with LocalCell(config) as cell, Client(cell.address) as client:
            for seed, policy in enumerate(("basic", "dualpath")):
                await client.set_policy(policy)
                runs[policy] = await replay(client, workload(), seed=seed, vocab_size=VOCAB_SIZE)
                say(f"{shape} {policy}: {runs[policy].jct_s:.1f} s")
    figures = {name: run.figures() for name, run in runs.items()}
    return {
        "speedup": speedup(figures),
        "basic_jct_s": figures["basic"]["jct_s"],
        "dualpath_jct_s": figures["dualpath"]["jct_s"],
        "snic_max_over_avg": figures["dualpath"]["snic_max_over_avg"],
        "de_read_share": figures["dualpath"]["de_read_share"],
        "scheduler_cpu_s_per_turn": figures["dualpath"]["scheduler_cpu_s_per_turn"],
        "turns": figures["dualpath"]["turns"],
        "snic_bytes": figures["dualpath"]["snic_bytes"],
    }


class Say:
    """Progress on stderr."""

    def __call__(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="only this shape (repeatable)")
    arguments = parser.parse_args()
    say = Say()
    shapes = {shape: asyncio.run(measure(shape, say)) for shape in arguments.shape or SHAPES}
    report = {"shapes": shapes}
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    missed = [
        f"{shape}: speedup {figures['speedup']} (wanted {SHAPES[shape]}), balance {figures['snic_max_over_avg']}"
        for shape, figures in shapes.items()
        if float(str(figures["speedup"])) < SHAPES[shape] or float(str(figures["snic_max_over_avg"])) > SNIC_BALANCE_MAX
    ]
    for line in missed:
        say(f"below the mark: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
