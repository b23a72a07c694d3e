"""Many runs side by side: each result is kept the moment it is there, so that the same command goes on after Ctrl-C."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from dualpath.model.errors import Broken
from dualpath.simulator.runs.case import Case, run_case
from dualpath.simulator.runs.interrupt import at_safe_points

POLL_S = 0.5
SPAWN = multiprocessing.get_context("spawn")

Result = Mapping[str, Any]  # Summary.as_dict()
Told = Callable[[int, int, int, str], None]  # runs ended, runs in all, turns simulated in this process tree, last title

_turns: "Synchronized[int] | None" = None


def run_cases(
    cases: Sequence[Case], *, jobs: int = 1, kept: Path | None = None, told: Told | None = None
) -> dict[Case, Result]:
    """Results of all cases; equal cases run once.

    jobs  processes; 1 runs here
    kept  folder of results: what is there is not run again, what ends is written there at once
    told  hears of progress, at least twice a second

    raises  what a run raises, KeyboardInterrupt as it is; whatever had ended before is in `kept`
    """
    wanted = list(dict.fromkeys(cases))
    results = load_kept(wanted, kept)
    left = [case for case in wanted if case not in results]
    if jobs <= 1 or len(left) <= 1:
        _run_here(left, results, kept, len(wanted), told)
    else:
        _run_in_pool(left, results, kept, len(wanted), told, jobs)
    return {case: results[case] for case in wanted}


def objective_s(case: Case, result: Result) -> float:
    """What a run is judged by, in seconds, smaller is better: mean TTFT where sessions come over time, else JCT."""
    return float(result["ttft_s"]["mean"] if case.workload.is_online else result["jct_s"])


def load_kept(cases: Sequence[Case], kept: Path | None) -> dict[Case, Result]:
    """Those results that are kept already."""
    found = {case: _load(kept, case) for case in dict.fromkeys(cases)}
    return {case: result for case, result in found.items() if result is not None}


def _run_here(
    left: Sequence[Case], results: dict[Case, Result], kept: Path | None, total: int, told: Told | None
) -> None:
    turns = 0
    last_at = 0.0

    for case in left:
        before = turns

        def progress(ended: int, _: int, before: int = before, title: str = case.title) -> None:
            nonlocal last_at
            if told is not None and time.monotonic() - last_at > POLL_S:
                last_at = time.monotonic()
                told(len(results), total, before + ended, title)

        results[case] = _keep(kept, case, run_case(case, progress=progress).as_dict())
        turns += results[case]["turns"]
        if told is not None:
            told(len(results), total, turns, case.title)


def _run_in_pool(
    left: Sequence[Case], results: dict[Case, Result], kept: Path | None, total: int, told: Told | None, jobs: int
) -> None:
    turns = SPAWN.Value("q", 0)
    ordered = sorted(left, key=_weight, reverse=True)  # the longest first: none is left alone at the end
    with at_safe_points() as interrupt, workers(min(jobs, len(left)), turns) as pool:
        running: dict[Future[Result], Case] = {pool.submit(_run_in_worker, case): case for case in ordered}
        try:
            while running:
                interrupt.check()
                ended, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                title = ""
                for future in ended:
                    case = running.pop(future)
                    title = case.title
                    results[case] = _keep(kept, case, future.result())
                if told is not None:
                    told(len(results), total, turns.value, title)
        except BrokenProcessPool as error:
            message = f"a simulating process was killed (memory?) after {len(results)} of {total} runs"
            raise Broken(message, reason="CHILD") from error


@contextmanager
def workers(jobs: int, turns: "Synchronized[int] | None" = None) -> Iterator[ProcessPoolExecutor]:
    """Processes for runs, which leave Ctrl-C to this one; where an error ends the block, they are killed.

    turns  counts the turns that all of them have simulated
    """
    pool = ProcessPoolExecutor(jobs, mp_context=SPAWN, initializer=_begin_worker, initargs=(turns,))
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()  # a run has nothing to clean up, and may have minutes to go
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _begin_worker(turns: "Synchronized[int] | None") -> None:
    global _turns
    _turns = turns
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides


def _run_in_worker(case: Case) -> Result:
    last = 0

    def progress(ended: int, _: int) -> None:
        nonlocal last
        if _turns is not None:
            with _turns.get_lock():
                _turns.value += ended - last
        last = ended

    return run_case(case, progress=progress).as_dict()


def _weight(case: Case) -> float:
    """About how long a run takes, for ordering."""
    load = case.workload
    sessions = load.sessions or load.aps * load.until_s
    return sessions * load.tokens_max * (2 if case.shape.startswith("4") else 1)


def _path(kept: Path, case: Case) -> Path:
    return kept / f"{case.key}.json"


def _load(kept: Path | None, case: Case) -> Result | None:
    if kept is None:
        return None
    try:
        found: dict[str, Any] = json.loads(_path(kept, case).read_text())
    except (OSError, ValueError):
        return None  # not there, or cut off by a full disk: it is run again
    summary: Result = found["summary"]
    return summary


def _keep(kept: Path | None, case: Case, summary: Mapping[str, Any]) -> Result:
    """Through JSON in any case: a result is the same whether it was kept or not."""
    text = json.dumps({"case": asdict(case), "summary": summary}, sort_keys=True)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        whole = _path(kept, case)
        part = whole.with_suffix(f".{os.getpid()}.part")
        part.write_text(text)
        part.replace(whole)
    result: Result = json.loads(text)["summary"]
    return result
