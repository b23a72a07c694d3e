"""Agent programs: each opens a client, runs a session of many short turns, and goes. Every answer is checked.

Now and then a program cancels a turn, gives one a deadline that is too short, goes away in the middle and comes back
under the same key, or asks again for what has ended. What it saw goes to a history; `failures` is what must not be.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from dualpath.client import Client
from dualpath.client.handle import TurnHandle, TurnSpec
from dualpath.engine_agent.engines.emulated import EmulatedEngine
from dualpath.model.errors import DualPathError, Refused
from dualpath.model.ids import ROOT_KEY, BlockKey
from dualpath.model.turn import EndReason, TurnResult

from .history import History

TOKENS = 32_000  # ids of the emulated model
ANSWER_S = 120.0  # longest wait for an answer; more is a failure
EXPECTED_ENDS = {EndReason.LENGTH, EndReason.STOP_TOKEN, EndReason.CANCELLED, EndReason.DEADLINE}
FAILURES_KEPT = 200
LOST_CONTEXTS_MAX = 3  # in a row, of one turn


@dataclass(frozen=True, slots=True)
class Habits:
    """How programs behave; shares are of turns."""

    programs: int = 4
    turns: tuple[int, int] = (4, 14)  # of a session
    append: tuple[int, int] = (8, 160)  # tokens added each turn
    new: tuple[int, int] = (4, 32)
    think_s: tuple[float, float] = (0.2, 2.0)
    pause_s: tuple[float, float] = (0.2, 3.0)  # between two sessions
    cancel: float = 0.03
    deadline: float = 0.03
    leave: float = 0.02
    ask_again: float = 0.05
    short_deadline_s: tuple[float, float] = (0.02, 0.2)
    deadline_s: float = 0.0  # of all other turns; 0: the scheduler's own


@dataclass(slots=True)
class Context:
    """What a session knows of its past."""

    tokens: list[int] = field(default_factory=list)
    key: BlockKey = ROOT_KEY
    length: int = 0


class Load:
    """Runs programs until told to stop; then the turns under way come to their end."""

    def __init__(
        self, addresses: str, *, habits: Habits, seed: int, history: History, engine: EmulatedEngine, name: str = "run"
    ) -> None:
        self.failures: list[str] = []
        self.ends: Counter[str] = Counter()
        self.reconnects = 0
        self._addresses = addresses
        self._habits = habits
        self._seed = seed
        self._history = history
        self._engine = engine
        self._name = name
        self._stopping = asyncio.Event()
        self._sessions = 0

    @property
    def turns(self) -> int:
        return sum(self.ends.values())

    async def run(self) -> None:
        """Until `stop`; what goes wrong in a program is a failure of the load and ends that session alone."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._habits.programs):
                tasks.create_task(self._program(random.Random(f"{self._seed} program {number}")))

    def stop(self) -> None:
        self._stopping.set()

    def fail(self, text: str) -> None:
        self._history.add("failure", text=text)
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(text)

    async def _program(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            await self._rest(chance.uniform(*self._habits.pause_s))
            session = f"{self._name}-{self._seed}-{self._sessions}"
            self._sessions += 1
            try:
                async with Client(self._addresses) as client:
                    await self._session(client, session, chance)
                    self.reconnects += max(0, client.reconnects)
            except (DualPathError, TimeoutError) as error:
                self.fail(f"session {session}: {type(error).__name__}: {error}")

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _session(self, client: Client, session: str, chance: random.Random) -> None:
        habits, context = self._habits, Context()
        for number in range(chance.randint(*habits.turns)):
            if self._stopping.is_set():
                return
            append = [chance.randrange(TOKENS) for _ in range(chance.randint(*habits.append))]
            await self._turn(client, context, append, f"{session}-{number}", session, chance)
            await self._rest(chance.uniform(*habits.think_s))

    async def _turn(
        self, client: Client, context: Context, append: list[int], key: str, session: str, chance: random.Random
    ) -> None:
        """One turn to its end; a lost context is sent again whole, as a turn of its own."""
        prompt = [*context.tokens, *append]
        new, roll = chance.randint(*self._habits.new), chance.random()
        for resend in range(1 + LOST_CONTEXTS_MAX):
            deadline_s = self._habits.deadline_s
            if self._habits.cancel <= roll < self._habits.cancel + self._habits.deadline:
                deadline_s = chance.uniform(*self._habits.short_deadline_s)
            spec = TurnSpec(
                tokens=tuple(prompt[context.length :]),
                max_new_tokens=new,
                session_id=session,
                context_key=context.key,
                context_tokens=context.length,
                forced_tokens=True,
                deadline_s=deadline_s,
            )
            result = await self._answer(
                client, spec, f"{key}-r{resend}", prompt, chance, cancel=roll < self._habits.cancel
            )
            if result is not None and result.end_reason is not EndReason.CONTEXT_LOST:
                if result.end_reason is EndReason.LENGTH:
                    context.tokens = [*prompt, *result.tokens]
                    context.key, context.length = result.context_key, result.context_tokens
                return
            context.key, context.length = ROOT_KEY, 0
        self.fail(f"turn {key}: its context was lost {1 + LOST_CONTEXTS_MAX} times")

    async def _answer(
        self, client: Client, spec: TurnSpec, key: str, prompt: Sequence[int], chance: random.Random, *, cancel: bool
    ) -> TurnResult | None:
        """The result, None where the context is unknown."""
        self._history.add(
            "submitted",
            key=key,
            session=spec.session_id,
            prompt_tokens=len(prompt),
            new=spec.max_new_tokens,
            deadline_s=spec.deadline_s,
        )
        if chance.random() < self._habits.leave:
            await self._come_and_go(spec, key, chance)
        handle = await client.submit(spec, idempotency_key=key)
        watching = asyncio.create_task(self._watch(handle))
        canceller = asyncio.create_task(self._cancel(client, handle, chance)) if cancel else None
        try:
            async with asyncio.timeout(ANSWER_S):
                result = await handle.result()
        except Refused as error:
            self._history.add("refused", key=key, reason=error.reason, text=str(error))
            self.ends[f"refused {error.reason}"] += 1
            return TurnResult((), EndReason.CANCELLED)
        except DualPathError as error:
            self._history.add("refused", key=key, reason=error.reason, text=str(error))
            self.ends[f"refused {error.reason}"] += 1
            if error.reason != "CONTEXT_UNKNOWN":
                self.fail(f"turn {key} was refused: {error}")
                return TurnResult((), EndReason.CANCELLED)
            return None
        except TimeoutError:
            self.fail(f"turn {key} ({handle.turn_id or 'not accepted'}) has no answer after {ANSWER_S:g} s")
            raise
        finally:
            for task in (watching, canceller):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
        self._check(spec, key, prompt, handle, result)
        if chance.random() < self._habits.ask_again:
            await self._ask_again(spec, key, result)
        return result

    def _check(self, spec: TurnSpec, key: str, prompt: Sequence[int], handle: TurnHandle, result: TurnResult) -> None:
        self.ends[result.end_reason] += 1
        right = True
        if result.end_reason is EndReason.LENGTH:
            right = len(result.tokens) == spec.max_new_tokens and self._engine.verify(prompt, result.tokens).equal
        attempt = handle.last_event.attempt if handle.last_event else 0
        self._history.add(
            "result",
            key=key,
            turn=handle.turn_id,
            attempt=attempt,
            end=result.end_reason,
            digest=digest(result),
            right=right,
            answers=handle.results_seen,
        )
        if not right:
            self.fail(f"turn {key} has wrong tokens")
        if result.end_reason not in EXPECTED_ENDS and result.end_reason is not EndReason.CONTEXT_LOST:
            self.fail(f"turn {key} ended as {result.end_reason}: {result.message}")

    async def _watch(self, handle: TurnHandle) -> None:
        """Write down what the handle hears."""
        async for event in handle.events():
            self._history.add(
                "event",
                key=handle.idempotency_key,
                turn=event.turn_id,
                attempt=event.attempt,
                state=event.state,
                pe=event.pe,
                de=event.de,
            )

    async def _cancel(self, client: Client, handle: TurnHandle, chance: random.Random) -> None:
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        if not handle.turn_id:
            return
        key = handle.idempotency_key
        self._history.add("cancel asked", key=key, turn=handle.turn_id)
        try:
            await client.cancel(handle.turn_id)
        except DualPathError as error:  # the scheduler is away: the turn goes on, and ends some other way
            self._history.add("cancel failed", key=key, turn=handle.turn_id, reason=error.reason)
        else:
            self._history.add("cancel done", key=key, turn=handle.turn_id)

    async def _come_and_go(self, spec: TurnSpec, key: str, chance: random.Random) -> None:
        """Submit through a client that is gone before the answer."""
        async with Client(self._addresses) as passing:
            await passing.submit(spec, idempotency_key=key)
            await asyncio.sleep(chance.uniform(0.0, 0.05))
        self._history.add("left", key=key)

    async def _ask_again(self, spec: TurnSpec, key: str, first: TurnResult) -> None:
        """The same key once more, from another client: the same answer."""
        async with Client(self._addresses) as other:
            handle = await other.submit(spec, idempotency_key=key)
            try:
                async with asyncio.timeout(ANSWER_S):
                    again = await handle.result()
            except (DualPathError, TimeoutError) as error:
                self.fail(f"turn {key} asked again: {type(error).__name__}: {error}")
                return
        self._history.add("again", key=key, turn=handle.turn_id, end=again.end_reason, digest=digest(again))
        if digest(again) != digest(first):
            self.fail(f"turn {key} asked again has another answer: {again.end_reason} after {first.end_reason}")


def digest(result: TurnResult) -> str:
    """Names an answer: reason and tokens."""
    text = f"{result.end_reason}:{','.join(map(str, result.tokens))}"
    return sha256(text.encode()).hexdigest()[:16]
