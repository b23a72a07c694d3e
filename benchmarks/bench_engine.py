"""How fast the compute engines are: prefill over cached context, decode by batch, verify, and the emulated KV's bytes.

One BLAS thread, as each agent process has. Each figure is the median of --rounds; --json writes them for a machine.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.ports import ComputeEngine, ForwardChunk

NEW_TOKENS = 50  # a turn's miss tokens
BATCHES = (1, 8, 32)
NO_COST = {
    "prefill_s_per_token": 0.0,
    "prefill_s_per_forward": 0.0,
    "decode_s_per_step": 0.0,
    "decode_s_per_turn": 0.0,
}


@dataclass(frozen=True, slots=True)
class Figure:
    engine: str
    what: str
    ms: float
    value: float
    unit: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["reference", "emulated"], help="default: both")
    parser.add_argument("--engine-options", default="{}", help="options of the engine as JSON; needs --engine")
    parser.add_argument("--context", type=int, default=4096, help="cached tokens before the new ones")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    options: dict[str, Any] = json.loads(arguments.engine_options)
    if options and not arguments.engine:
        parser.error("--engine-options needs --engine")
    kinds = [arguments.engine] if arguments.engine else ["reference", "emulated"]
    figures = []
    for kind in kinds:
        defaults = NO_COST if kind == "emulated" else {}
        engine = build_engine(EngineSpec(kind, {**defaults, **options}))
        figures += measure(engine, context=arguments.context, rounds=arguments.rounds)
    print_table(figures)
    if arguments.json:
        report = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "figures": [asdict(f) for f in figures]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(engine: ComputeEngine, *, context: int, rounds: int) -> list[Figure]:
    """All figures of one engine; the context is rounded down to whole blocks, at least one."""
    layout = engine.layout
    context = max(1, layout.full_blocks_in(context)) * layout.block_tokens
    tokens = np.random.default_rng(0).integers(0, engine.vocab_size, context + NEW_TOKENS).tolist()
    layers = [forward(engine, tokens[:context], 0, [[]] * layout.num_layers)]
    cold_s = median_s(lambda: forward(engine, tokens[:context], 0, [[]] * layout.num_layers), min(rounds, 3))
    blocks = cut(layers[0], layout.layer_block_bytes)
    warm_s = median_s(lambda: forward(engine, tokens[context:], context, blocks), rounds)
    verify_s = median_s(lambda: engine.verify(tokens[:context], tokens[context:]), min(rounds, 3))
    full = [memoryview(b"".join(layer[index] for layer in blocks)) for index in range(len(blocks[0]))]
    admit_s = median_s(lambda: admit(engine, full, context, rounds), rounds)
    name = engine.model_name
    return [
        figure(name, f"prefill {context} tokens, nothing cached", cold_s, context, "tok/s"),
        figure(name, f"prefill {NEW_TOKENS} tokens after {context}", warm_s, NEW_TOKENS, "new tok/s"),
        figure(name, f"verify {NEW_TOKENS} tokens after {context}", verify_s, context + NEW_TOKENS, "tok/s"),
        figure(name, f"admit {context} tokens", admit_s, context * layout.bytes_per_token / 1e9, "GB/s"),
        *(measure_decode(engine, full, context, batch, rounds) for batch in BATCHES),
    ]


def measure_decode(engine: ComputeEngine, full: list[memoryview], context: int, batch: int, rounds: int) -> Figure:
    slots = [f"slot-{number}" for number in range(batch)]
    for slot in slots:
        engine.admit(slot, full, context, context + rounds + 1, 0)
    step_s = median_s(lambda: engine.decode_step(slots), rounds)
    for slot in slots:
        engine.release(slot)
    return figure(engine.model_name, f"decode step of {batch} turns at {context}", step_s, batch, "tok/s")


def forward(engine: ComputeEngine, tokens: list[int], cached: int, blocks: list[list[memoryview]]) -> list[memoryview]:
    """One turn through all layers; the new KV by layer."""
    batch = engine.begin_forward([ForwardChunk(tuple(tokens), cached, is_last=True)])
    computed = [engine.forward_layer(batch, layer, [blocks[layer]])[0] for layer in range(engine.layout.num_layers)]
    engine.end_forward(batch)
    return computed


def admit(engine: ComputeEngine, full: list[memoryview], context: int, room: int) -> None:
    engine.admit("admitted", full, context, context + room, 0)
    engine.release("admitted")


def cut(layers: list[memoryview], size: int) -> list[list[memoryview]]:
    return [[layer[at : at + size] for at in range(0, layer.nbytes, size)] for layer in layers]


def median_s(call: Callable[[], object], rounds: int) -> float:
    spans = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        call()
        spans.append(time.perf_counter() - started_s)
    return statistics.median(spans)


def figure(engine: str, what: str, span_s: float, amount: float, unit: str) -> Figure:
    return Figure(engine, what, round(1000 * span_s, 3), round(amount / span_s, 2), unit)


def print_table(figures: list[Figure]) -> None:
    for one in figures:
        print(f"{one.engine:10} {one.what:40} {one.ms:10.2f} ms {one.value:12,.1f} {one.unit}")


if __name__ == "__main__":
    main()
