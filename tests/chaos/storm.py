"""`make storm`: 10,000 turns while scheduler, agents and Redis are killed every two seconds for a minute.

A supervisor starts again at once what was killed. It holds where every turn is answered once and rightly, a recount
from the keys in Redis says the same as the clients and the scheduler, and nothing is reserved at the end. Progress goes
to stderr, one JSON line per property to stdout; the exit status is 1 where one failed.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis.asyncio as redis

from dualpath.client import Client
from dualpath.client.handle import TurnHandle, TurnSpec
from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.engines.emulated import EmulatedEngine
from dualpath.model.errors import DualPathError
from dualpath.model.turn import EndReason, TurnResult
from dualpath.v1 import admin_pb2

from .history import History
from .idle import wait_until_idle
from .load import TOKENS, digest
from .recount import Recount, recount
from .report import Report
from .stack import CELL, ENGINE_OPTIONS, Shape, Stack
from .supervisor import Supervisor, shuffled

KINDS = ("scheduler", "agent", "redis")
KILL_EVERY_S = 2.0
TELL_S = 5.0
FIRST_KILL_S = 1.0
TURNS_OPEN_MAX = 2000  # under way at once
ANSWERS_S = 600.0  # longest wait for all answers
IDLE_S = 30.0
PROMPT, NEW = (16, 96), (2, 12)
ATTEMPTS_MAX = 12  # so many kills may hit one turn more often than the default allows
STATUS_COUNTS = ("accepted", "committed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class StormOptions:
    turns: int = 10_000
    seconds: float = 60.0  # of kills; the turns are submitted evenly over them
    seed: int = 1


class Storm:
    """Use `run`, then `report`."""

    def __init__(self, options: StormOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        again = f"make storm SEED={options.seed} TURNS={options.turns} SECONDS={options.seconds:g}"
        self.report = Report("storm", options.seed, again)
        self.handles: list[TurnHandle] = []
        self.results: dict[str, TurnResult] = {}
        self.kills: Counter[str] = Counter()
        self._engine = cast(EmulatedEngine, build_engine(EngineSpec("emulated", ENGINE_OPTIONS)))
        self._history = History(folder / "storm.jsonl", "storm")
        self._answered_at_s: list[float] = []

    async def run(self) -> dict[str, Any]:
        """The whole storm; returns a summary in numbers."""
        flags = ("--attempts-max", str(ATTEMPTS_MAX))
        shape = Shape(prefill=2, decode=2, lease_s=2.0, store_lease_s=2.0, scheduler_flags=flags)
        began_s = time.monotonic()
        async with Stack(self.folder, shape) as stack:
            supervisor = Supervisor([*stack.by_name.values()], self._history)
            watching = asyncio.create_task(supervisor.watch())
            telling = asyncio.create_task(self._tell(supervisor))
            killing = asyncio.create_task(self._kill(stack, supervisor))
            try:
                reconnects = await self._ask(stack.address)
                answers_s = time.monotonic() - began_s
                await killing
                await self._judge(stack, supervisor)
            finally:
                for task in (watching, killing, telling):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
        gaps = [later - sooner for sooner, later in zip(self._answered_at_s, self._answered_at_s[1:], strict=False)]
        return {
            "seed": self.options.seed,
            "turns": self.options.turns,
            "ends": Counter(str(result.end_reason) for result in self.results.values()),
            "kills": dict(self.kills),
            "reconnects": reconnects,
            "answers_s": round(answers_s, 1),
            "longest_silence_s": round(max(gaps, default=0.0), 2),
            "failures": self.report.failures,
        }

    # the turns

    async def _ask(self, address: str) -> int:
        """Submit all turns, wait for all answers; returns how often the client had to dial again."""
        tasks = []
        async with Client(address, unreachable_s=ANSWERS_S, turns_max=TURNS_OPEN_MAX) as client:
            with suppress(TimeoutError):  # what has no answer by then is a failure of its own
                async with asyncio.timeout(ANSWERS_S):
                    began_s, gap_s = time.monotonic(), self.options.seconds / self.options.turns
                    for number, spec in enumerate(self._specs()):
                        await asyncio.sleep(max(0.0, began_s + number * gap_s - time.monotonic()))
                        handle = await client.submit(spec, idempotency_key=f"storm-{self.options.seed}-{number}")
                        self.handles.append(handle)
                        tasks.append(asyncio.create_task(self._answer(handle)))
                    await asyncio.wait(tasks)
            return client.reconnects

    def _specs(self) -> list[TurnSpec]:
        chance = random.Random(f"{self.options.seed} turns")
        return [
            TurnSpec(
                tuple(chance.randrange(TOKENS) for _ in range(chance.randint(*PROMPT))),
                chance.randint(*NEW),
                session_id=f"s{number}",
                forced_tokens=True,
            )
            for number in range(self.options.turns)
        ]

    async def _answer(self, handle: TurnHandle) -> None:
        key, right = handle.idempotency_key, self.report.of("answers_are_right")
        try:
            result = await handle.result()
        except DualPathError as error:
            right.trial(f"turn {key} was refused: {error}")
            return
        self.results[key] = result
        self._answered_at_s.append(time.monotonic())
        right.trial(self._problem(handle, result))

    def _problem(self, handle: TurnHandle, result: TurnResult) -> str:
        if result.end_reason is not EndReason.LENGTH:
            return f"turn {handle.idempotency_key} ended as {result.end_reason}: {result.message}"
        whole = len(result.tokens) == handle.spec.max_new_tokens
        right = whole and self._engine.verify(handle.spec.tokens, result.tokens).equal
        return "" if right else f"turn {handle.idempotency_key} has wrong tokens"

    # the kills

    async def _kill(self, stack: Stack, supervisor: Supervisor) -> None:
        chance = random.Random(f"{self.options.seed} kills")
        await asyncio.sleep(FIRST_KILL_S)
        began_s = time.monotonic()
        for number, kind in enumerate(shuffled(KINDS, int(self.options.seconds / KILL_EVERY_S), chance)):
            await asyncio.sleep(max(0.0, began_s + number * KILL_EVERY_S - time.monotonic()))
            victim = {"scheduler": stack.scheduler, "redis": stack.redis, "agent": chance.choice(stack.agents)}[kind]
            self.kills[victim.name] += 1
            await supervisor.kill(victim)

    async def _tell(self, supervisor: Supervisor) -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(TELL_S)
            text = f"{len(self.results)} of {self.options.turns} answered, {sum(self.kills.values())} kills"
            died = f", died {dict(supervisor.died)}" if supervisor.died else ""
            self.report.say(f"{time.monotonic() - began_s:5.0f} s  {text}{died}")

    # the judgement

    async def _judge(self, stack: Stack, supervisor: Supervisor) -> None:
        once = self.report.of("every_turn_is_answered_once")
        for handle in self.handles:
            times = handle.results_seen
            failure = f"turn {handle.idempotency_key} was answered {times} times" if times != 1 else ""
            once.trial(failure, value=times)
        once.trials_of(*_missing(self.options.turns - len(self.handles)))
        found = await wait_until_idle(stack.address, groups=len(stack.agents), timeout_s=IDLE_S)
        self.report.of("nothing_is_reserved_at_the_end").trials_of(1 + len(stack.agents), found)
        async with Client(stack.address) as client, redis.Redis.from_url(stack.redis_url) as store:
            status, counted = await client.status(), await recount(store, CELL)
        self._compare(counted, status)
        died = self.report.of("nothing_dies_that_was_not_killed")
        died.trials_of(sum(self.kills.values()), supervisor.crashes)

    def _compare(self, counted: Recount, status: admin_pb2.CellStatus) -> None:
        """Client, scheduler and Redis must tell of the same turns with the same answers."""
        agree = self.report.of("recount_equals_what_clients_saw")
        for key, result in self.results.items():
            turn = counted.turns.get(key)
            if turn is None:
                agree.trial(f"turn {key} was answered and is not in Redis")
            else:
                same = turn.digest == digest(result)
                text = f"turn {key} was answered {result.end_reason}, Redis has {turn.end} ({turn.state})"
                agree.trial("" if same else text, value=turn.attempt)
        if extra := counted.turns.keys() - {handle.idempotency_key for handle in self.handles}:
            agree.trial(f"Redis has {len(extra)} turns that nobody submitted")
        ledger = self.report.of("recount_equals_the_ledger")
        wanted = {"accepted": len(counted.turns)} | {name: counted.states.get(name, 0) for name in STATUS_COUNTS[1:]}
        for name in STATUS_COUNTS:
            has = getattr(status, name)
            ledger.trial(f"the scheduler says {has} {name}, Redis {wanted[name]}" if has != wanted[name] else "")
        ledger.trials_of(1, counted.problems)
        if counted.records or counted.waiting:
            ledger.trial(f"Redis holds {counted.records} records, {counted.waiting} turns in lines")


def _missing(count: int) -> tuple[int, list[str]]:
    return (count, [f"{count} turns could not even be submitted in {ANSWERS_S:g} s"]) if count else (0, [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make storm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The seed fixes the order of the kills, their victims and all turns; where exactly in a turn's life a"
        " kill falls depends on the machine.",
    )
    defaults = StormOptions()
    parser.add_argument("--turns", type=int, default=defaults.turns, help="how many; default %(default)s")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of kills, one each two seconds")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="default %(default)s")
    parser.add_argument("--out", type=Path, help="also write a summary in numbers to this JSON file")
    parser.add_argument("--folder", type=Path, help="keep data, logs and the history of kills here")
    given = parser.parse_args(arguments)
    options = StormOptions(given.turns, given.seconds, given.seed)
    with tempfile.TemporaryDirectory(prefix="dualpath-storm-") as temporary:
        storm = Storm(options, given.folder or Path(temporary))
        summary = asyncio.run(storm.run())
    storm.report.say(json.dumps(summary))
    if given.out:
        given.out.write_text(json.dumps(summary, indent=1))
    return storm.report.finish()


if __name__ == "__main__":
    sys.exit(main())
