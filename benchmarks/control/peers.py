"""Other routers on the same work, in a throw-away venv: what a turn costs each of them in CPU of its own process.

The work is one turn of `blocks` full blocks of context and PROMPT_TOKENS after it, on the 64-engine shape: choose its
prefill and its decode engine, count it as open on both, and hear that prefill and turn are over (docs/benchmarks.md).

    dynamo         five calls: select_and_reserve for prefill and for decode, prefill_complete, DELETE of both
    sglang_router  one call, proxied to a prefill and a decode worker that answer at once (PD mode)
    sglang_router_one_stage   the same router with one kind of worker: it chooses one engine, not a pair

A peer that cannot be installed or started is in the report with the reason.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.control.http1 import TURN, Request
from benchmarks.control.load import BLOCK_TOKENS, PROMPT_TOKENS, SHAPES
from benchmarks.control.processes import name_of

PACKAGES = {"dynamo": "ai-dynamo-runtime==1.6.1", "sglang_router": "sglang-router==0.3.2"}
ENGINES = 64
CONTEXTS = 64
CONNECTIONS = 64  # turns under way
CHARACTERS_PER_TOKEN = 4
INSTALL_S, READY_S, POLL_S = 600.0, 90.0, 0.1
WORDS = ("read", "file", "test", "then", "fix ", "main", "loop", "call")

Say = Callable[[str], None]


class PeerFailed(Exception):
    """Why a peer has no figures."""


def measure(folder: Path, say: Say, *, blocks: int, seconds: float) -> dict[str, dict[str, object]]:
    """Every peer's figures, or its `error`."""
    found: dict[str, dict[str, object]] = {}
    peers = (
        ("dynamo", "dynamo", _dynamo),
        ("sglang_router", "sglang_router", _sglang_pairs),
        ("sglang_router_one_stage", "sglang_router", _sglang_one_stage),
    )
    for name, package, run in peers:
        try:
            python = _install(folder, PACKAGES[package], say)
            found[name] = run(python, blocks, seconds) | {"version": PACKAGES[package]}
            say(f"{name}: {found[name]['turns_per_core_s']} turns per core second")
        except (PeerFailed, OSError, subprocess.SubprocessError) as error:
            found[name] = {"error": str(error), "version": PACKAGES[package], "turns_per_core_s": None}
            say(f"{name}: {error}")
    return found


def _install(folder: Path, package: str, say: Say) -> Path:
    """A venv that holds this package alone; kept for the next time."""
    venv = folder / package.partition("==")[0]
    python, mark = venv / "bin" / "python", venv / package
    if not mark.exists():
        say(f"installing {package} into {venv}")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        for command in ([sys.executable, "-m", "venv", str(venv)], pip):
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise PeerFailed(f"cannot be installed: {last}")
        mark.touch()
    return python


def _dynamo(python: Path, blocks: int, seconds: float) -> dict[str, object]:
    port = _free_port()
    command = [str(python), "-m", "dynamo.select_service", "--port", str(port)]
    # without events of workers it learns from its own choices what they hold
    environment = {"DYN_ROUTER_USE_KV_EVENTS": "false", "DYN_LOG": "error"}
    with ExitStack() as closing:
        process = _started(closing, command, environment)
        _wait_until_up(process, port, "/health")
        pe_groups, de_groups, size = SHAPES[ENGINES]
        for group, workers in (("prefill", pe_groups * size), ("decode", de_groups * size)):
            for number in range(workers):
                _call(port, "POST", "/workers", _dynamo_worker(group, number))
        _wait_until_up(process, port, "/ready")
        return _turns(port, process.pid, [_dynamo_turn(context, blocks) for context in range(CONTEXTS)], seconds)


def _dynamo_worker(group: str, number: int) -> dict[str, object]:
    return {
        "worker_id": number + (10_000 if group == "decode" else 0),
        "model_name": "bench",
        "routing_group": group,
        "endpoint": f"http://{group}-{number}:1",
        "block_size": BLOCK_TOKENS,
        "data_parallel_start_rank": 0,
        "data_parallel_size": 1,
    }


def _dynamo_turn(context: int, blocks: int) -> list[Request]:
    hashes = [1 + context * 100_000 + number for number in range(blocks)]
    calls = []
    for group in ("prefill", "decode"):
        body = {
            "selection_id": f"{group}-{TURN}",
            "model_name": "bench",
            "routing_group": group,
            "block_hashes": hashes,
            "sequence_hashes": [number + 50_000 for number in hashes],
            "isl_tokens": blocks * BLOCK_TOKENS + PROMPT_TOKENS,
        }
        calls.append(Request("POST", "/select_and_reserve", json.dumps(body, separators=(",", ":"))))
    return [
        *calls,
        Request("POST", f"/reservations/prefill-{TURN}/prefill_complete", "{}"),
        Request("DELETE", f"/reservations/prefill-{TURN}"),
        Request("DELETE", f"/reservations/decode-{TURN}"),
    ]


def _sglang_pairs(python: Path, blocks: int, seconds: float) -> dict[str, object]:
    pe_groups, de_groups, size = SHAPES[ENGINES]
    ports = _free_ports(pe_groups * size + de_groups * size)
    prefill, decode = ports[: pe_groups * size], ports[pe_groups * size :]
    arguments = ["--pd-disaggregation", "--prefill-policy", "cache_aware", "--decode-policy", "power_of_two"]
    for port in prefill:
        arguments += ["--prefill", _url(port), "none"]
    for port in decode:
        arguments += ["--decode", _url(port)]
    return _sglang(python, arguments, ports, blocks, seconds)


def _sglang_one_stage(python: Path, blocks: int, seconds: float) -> dict[str, object]:
    ports = _free_ports(ENGINES)
    return _sglang(python, ["--policy", "cache_aware", "--worker-urls", *map(_url, ports)], ports, blocks, seconds)


def _sglang(
    python: Path, arguments: Sequence[str], ports: Sequence[int], blocks: int, seconds: float
) -> dict[str, object]:
    port, metrics_port = _free_ports(2)
    command = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(metrics_port), "--log-level", "error", "--disable-health-check", *arguments]
    with ExitStack() as closing:
        workers = _started(closing, [sys.executable, "-m", "benchmarks.control.http1", "workers"], {}, told=ports)
        router = _started(closing, command, {})
        _wait_until_up(router, port, "/health")
        _wait_until_routed(router, port)
        if workers.poll() is not None:
            raise PeerFailed("its stub workers ended")
        return _turns(port, router.pid, [_sglang_turn(context, blocks) for context in range(CONTEXTS)], seconds)


def _sglang_turn(context: int, blocks: int) -> list[Request]:
    chance = random.Random(context)
    words = [chance.choice(WORDS) for _ in range(blocks * BLOCK_TOKENS)]
    text = f"context {context} {''.join(words)} turn {TURN}".ljust(
        (blocks * BLOCK_TOKENS + PROMPT_TOKENS) * CHARACTERS_PER_TOKEN, "."
    )
    body = {"text": text, "sampling_params": {"max_new_tokens": 4}}
    return [Request("POST", "/generate", json.dumps(body, separators=(",", ":")))]


# processes and plain calls


def _turns(port: int, pid: int, requests: list[list[Request]], seconds: float) -> dict[str, object]:
    told = {
        "port": port,
        "pid": pid,
        "requests": [[asdict(request) for request in turn] for turn in requests],
        "connections": CONNECTIONS,
        "warm_up_s": min(2.0, seconds / 2),
        "seconds": seconds,
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.control.http1", "turns"],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=seconds + READY_S,
    )
    if done.returncode:
        raise PeerFailed(f"its load ended with: {done.stderr.strip()[-300:]}")
    figures: dict[str, object] = json.loads(done.stdout)
    if figures["errors"]:
        raise PeerFailed(f"{figures['errors']} of its answers were errors, the last one: {figures['error']}")
    del figures["error"]
    return figures


def _started(
    closing: ExitStack, command: Sequence[str], environment: dict[str, str], *, told: Sequence[int] | None = None
) -> "subprocess.Popen[bytes]":
    """A process that ends with `closing`; with `told` it gets ports and says when it listens."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if told else subprocess.DEVNULL,
        stdout=subprocess.PIPE if told else subprocess.DEVNULL,
        stderr=None if told else subprocess.DEVNULL,
        env=os.environ | environment,
    )
    closing.callback(process.wait)
    closing.callback(process.kill)
    if told:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"ports": list(told)}).encode())
        process.stdin.close()
        process.stdout.readline()
    return process


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int, path: str) -> None:
    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            _call(port, "GET", path)
        except OSError as error:
            if process.poll() is not None:
                raise PeerFailed(f"it ended with {process.returncode} while starting") from error
            if time.monotonic() > deadline_s:
                raise PeerFailed(f"{name_of(process.pid)} did not answer {path} in {READY_S:g} s: {error}") from error
            time.sleep(POLL_S)
        else:
            return


def _wait_until_routed(process: "subprocess.Popen[bytes]", port: int) -> None:
    """The router answers before it knows its workers: wait until a turn goes through."""
    deadline_s = time.monotonic() + READY_S
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 1}}
    while True:
        try:
            _call(port, "POST", "/generate", body)
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise PeerFailed(f"it routes nothing: {error}") from error
            time.sleep(POLL_S)
        else:
            return


def _call(port: int, method: str, path: str, body: object = None) -> None:
    """raises OSError for every answer but a good one"""
    request = urllib.request.Request(
        f"{_url(port)}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _free_port() -> int:
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as closing:
        sockets = [closing.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
