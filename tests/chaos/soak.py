"""`make soak`: a cell of real processes under a modest load for an hour; nothing may grow without end.

One scheduler, a Redis that syncs each write, six agents, programs that come and go, an agent started anew every few
minutes. It holds where no process gains 1 MiB a minute after the warm-up, nothing is wrong with any answer, and after
an idle time longer than the retention of ended turns, descriptors, threads, keys and metric series are back at base.
Progress goes to stderr, one JSON line per property to stdout; the exit status is 1 where one failed.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import redis.asyncio as redis

from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.engines.emulated import EmulatedEngine

from .history import History
from .idle import wait_until_idle
from .load import Habits, Load
from .processes import Process
from .report import Report
from .samples import MIB, Sample, Sampler, trend
from .scheduler_main import RETENTION
from .stack import ENGINE_OPTIONS, Shape, Stack

SAMPLE_S, TELL_S = 5.0, 60.0
WARM_LOAD_S, WARM_IDLE_S = 30.0, 5.0  # before the base is measured: pools of threads and connections are open then
WARM_UP_SHARE = 0.2  # of the run, and at least the retention: not judged
IDLE_MARGIN_S = 30.0  # beyond the retention of ended turns
SETTLE_S = 60.0  # for the turns under way to end, and the load to stop
RSS_SLOPE_MAX_MIB_PER_MIN = 1.0
JUDGED_MIN_S = 300.0  # with less than this behind the warm-up a slope is the collector's saw tooth
FDS_OVER_BASE_MAX, THREADS_OVER_BASE_MAX = 16, 16  # of each process: pools grow late; a leak is far more in an hour
LIFE_SHARE_MIN = 0.4  # of the judged time: a process started anew meanwhile has no trend
AGENT_LIFE_S = (180.0, 300.0)  # between two restarts of an agent
RESTARTED = ("p0", "d0")  # the others live as long as the run


class Soak:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.report = Report("soak", options.seed, f"make soak SEED={options.seed} MINUTES={options.minutes:g}")
        self.engine = cast(EmulatedEngine, build_engine(EngineSpec("emulated", ENGINE_OPTIONS)))
        self.restarts: dict[str, int] = {}
        self.load: Load | None = None

    async def run(self) -> dict[str, Any]:
        """The whole soak; returns all samples and a summary in numbers."""
        shape = Shape(
            scheduler_program=("-P", str(Path(__file__).with_name("scheduler_main.py"))),
            scheduler_environment={RETENTION: str(self.options.retention_s)},
        )
        async with Stack(self.folder, shape) as stack, redis.Redis.from_url(stack.redis_url) as client:
            sampler = Sampler(stack, client)
            base = await self._base(stack, sampler)
            self.report.say(f"base: {_line(base)}")
            began_s, ended_s = await self._under_load(stack, sampler)
            last = await self._idle(stack, sampler)
        return self._judge(sampler.samples, base, last, began_s, ended_s)

    async def _base(self, stack: Stack, sampler: Sampler) -> Sample:
        load = self._new_load(stack, "warm")
        await self._for(WARM_LOAD_S, load, [])
        await asyncio.sleep(WARM_IDLE_S)
        return await sampler.take()

    async def _under_load(self, stack: Stack, sampler: Sampler) -> tuple[float, float]:
        self.load = load = self._new_load(stack, "run")
        began_s = time.monotonic() - sampler.began_at_s
        await self._for(60 * self.options.minutes, load, [self._sample(sampler), self._restart_agents(stack)])
        return began_s, time.monotonic() - sampler.began_at_s

    async def _for(self, seconds: float, load: Load, beside: list[Coroutine[Any, Any, None]]) -> None:
        running = asyncio.create_task(load.run())
        tasks = [asyncio.create_task(work) for work in beside]
        await asyncio.wait([running, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        load.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait([running, *tasks], timeout=SETTLE_S)
        for task in (running, *tasks):
            if not task.done():
                task.cancel()
                self.report.of("answers_are_right").trial(f"the load did not end within {SETTLE_S:g} s")
            elif not task.cancelled() and (error := task.exception()):
                self.report.of("answers_are_right").trial(f"a task of the soak failed: {error!r}")
        self.report.of("answers_are_right").trials_of(load.turns, load.failures)

    def _new_load(self, stack: Stack, name: str) -> Load:
        return Load(
            stack.address,
            habits=Habits(programs=self.options.programs),
            seed=self.options.seed,
            history=History(None, "load"),
            engine=self.engine,
            name=name,
        )

    async def _sample(self, sampler: Sampler) -> None:
        told_at_s = time.monotonic()
        while True:
            sample = await sampler.take()
            if time.monotonic() - told_at_s >= TELL_S:
                told_at_s += TELL_S
                self._tell(sample)
            await asyncio.sleep(SAMPLE_S)

    async def _restart_agents(self, stack: Stack) -> None:
        """In turn, by SIGTERM or kill -9."""
        chance = random.Random(f"{self.options.seed} restarts")
        while True:
            for name in RESTARTED:
                await asyncio.sleep(chance.uniform(*AGENT_LIFE_S))
                agent = stack.by_name[name]
                await _restarted(agent, agent.kill if chance.random() < 0.5 else agent.end)
                self.restarts[name] = self.restarts.get(name, 0) + 1

    async def _idle(self, stack: Stack, sampler: Sampler) -> Sample:
        found = await wait_until_idle(stack.address, groups=len(stack.agents), timeout_s=SETTLE_S)
        self.report.of("nothing_is_reserved_at_the_end").trials_of(1 + len(stack.agents), found)
        idle_s = self.options.retention_s + IDLE_MARGIN_S
        self.report.say(f"idle for {idle_s:g} s")
        ends_at_s = time.monotonic() + idle_s
        while time.monotonic() < ends_at_s:
            await asyncio.sleep(min(SAMPLE_S, max(0.0, ends_at_s - time.monotonic())))
            await sampler.take()
        return sampler.samples[-1]

    def _tell(self, sample: Sample) -> None:
        load = self.load
        turns, wrong = (load.turns, len(load.failures)) if load else (0, 0)
        self.report.say(f"{sample.at_s / 60:5.1f} min  {turns} turns, {wrong} failures  {_line(sample)}")

    # the judgement

    def _judge(
        self, samples: list[Sample], base: Sample, last: Sample, began_s: float, ended_s: float
    ) -> dict[str, Any]:
        trends = self._trends(samples, last, began_s, ended_s)
        self._compare(base, last)
        load = self.load
        return {
            "seed": self.options.seed,
            "minutes": self.options.minutes,
            "turns": load.turns if load else 0,
            "turns_per_s": round(load.turns / (ended_s - began_s), 2) if load else 0.0,
            "ends": dict(load.ends) if load else {},
            "restarts": self.restarts,
            "reconnects": load.reconnects if load else 0,
            "failures": self.report.failures,
            "trends": trends,
            "cpu_cores": _cores(samples, began_s, ended_s),
            "base": base.as_json(),
            "last": last.as_json(),
            "samples": [sample.as_json() for sample in samples],
        }

    def _trends(self, samples: list[Sample], last: Sample, began_s: float, ended_s: float) -> dict[str, Any]:
        """Slope of each process that lived through most of the judged time."""
        slopes = self.report.of("rss_grows_less_than_1_mib_per_min")
        since_s = began_s + max(self.options.retention_s, WARM_UP_SHARE * (ended_s - began_s))
        if ended_s - since_s < JUDGED_MIN_S:
            slopes.not_run = f"{(ended_s - since_s) / 60:.1f} min behind the warm-up, wanted {JUDGED_MIN_S / 60:g}"
        trends: dict[str, Any] = {}
        for name in last.usages:
            found = trend(samples, name, since_s=since_s, until_s=ended_s)
            if found is None or found.minutes * 60 < LIFE_SHARE_MIN * (ended_s - since_s):
                continue
            trends[name] = asdict(found)
            if not slopes.not_run:
                grows = found.mib_per_min >= RSS_SLOPE_MAX_MIB_PER_MIN
                failure = f"{name} grows by {found.mib_per_min} MiB/min: {found}" if grows else ""
                slopes.trial(failure, value=found.mib_per_min)
        return trends

    def _compare(self, base: Sample, last: Sample) -> None:
        """What an idle cell holds after everything was forgotten that may be, against what it held before."""
        report = self.report
        alive = report.of("all_processes_are_there")
        fds, threads = report.of("descriptors_are_back_at_base"), report.of("threads_are_back_at_base")
        for name, (_, before) in base.usages.items():
            if name not in last.usages:
                alive.trial(f"{name} is gone")
                continue
            alive.trial()
            now = last.usages[name][1]
            fds.bounded(now.fds - before.fds, FDS_OVER_BASE_MAX, f"{name} has {now.fds}, at base {before.fds}; more")
            more = now.threads - before.threads
            threads.bounded(more, THREADS_OVER_BASE_MAX, f"{name} has {now.threads}, at base {before.threads}; more")
        report.of("metric_series_are_back_at_base").bounded(last.series - base.series, 0, "more series than at base")
        keys = report.of("redis_holds_nothing_of_ended_turns")
        keys.bounded(last.stored.keys - base.stored.keys, 0, "more keys than at base")
        for name in ("records", "waiting", "turns", "prompts", "idempotency"):
            keys.bounded(getattr(last.stored, name), 0, name)


def _cores(samples: list[Sample], began_s: float, ended_s: float) -> dict[str, float]:
    """CPU seconds per second of each life, added up by name."""
    spent: dict[tuple[str, int], list[float]] = {}
    for sample in samples:
        if began_s <= sample.at_s <= ended_s:
            for name, (pid, found) in sample.usages.items():
                spent.setdefault((name, pid), []).append(found.cpu_s)
    cores: dict[str, float] = {}
    for (name, _), values in spent.items():
        cores[name] = round(cores.get(name, 0.0) + (values[-1] - values[0]) / (ended_s - began_s), 4)
    return cores | {"all": round(sum(cores.values()), 4)}


async def _restarted(agent: Process, stop: Callable[[], None]) -> None:
    stop()
    await agent.gone()
    agent.start()
    await agent.ready()


def _line(sample: Sample) -> str:
    sizes = " ".join(f"{name} {found.rss_bytes / MIB:.1f}" for name, (_, found) in sample.usages.items())
    fds = sum(found.fds for _, found in sample.usages.values())
    redis_mib = sample.stored.memory_bytes / MIB
    return f"MiB: {sizes}; {fds} fds, Redis {redis_mib:.1f} MiB {sample.stored.turns} turns, {sample.series} series"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="With a run shorter than the warm-up and five minutes, growth is shown and not judged.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="under load; default %(default)s")
    parser.add_argument(
        "--retention-s", type=float, default=120.0, help="how long the scheduler keeps ended turns; default %(default)s"
    )
    parser.add_argument("--programs", type=int, default=14, help="agent programs at once, about a turn a second each")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--out", type=Path, help="also write all samples and a summary to this JSON file")
    parser.add_argument("--folder", type=Path, help="keep data and logs here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dualpath-soak-") as temporary:
        soak = Soak(options, options.folder or Path(temporary))
        summary = asyncio.run(soak.run())
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1))
    for name, found in summary["trends"].items():
        slope, minutes = found["mib_per_min"], found["minutes"]
        soak.report.say(f"{name:10} {slope:+.3f} MiB/min over {minutes} min, {found['last_mib']} MiB")
    numbers = {name: summary[name] for name in ("turns", "turns_per_s", "ends", "restarts", "reconnects", "cpu_cores")}
    soak.report.say(json.dumps(numbers))
    return soak.report.finish()


if __name__ == "__main__":
    sys.exit(main())
