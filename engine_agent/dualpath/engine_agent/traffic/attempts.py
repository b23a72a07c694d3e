"""The attempts a node works on: each is one task with an owner, started once, cancelled once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import structlog

from dualpath.engine_agent.plan.notes import AttemptKey, HandbackNote, HandbackReason, Note
from dualpath.model.turn import Plan

log = structlog.get_logger("dualpath.attempts")


class Attempts:
    """Runs `run(key, plan)` as a task per attempt and tells the note it ends with (None: nothing to tell).

    An ended attempt is remembered with its last note: a scheduler that restarted may send its plan again, and is then
    told the outcome again instead of getting a second run.
    """

    def __init__(
        self,
        run: Callable[[AttemptKey, Plan], Awaitable[Note | None]],
        *,
        tell: Callable[[Note], None],
        remembered_max: int = 4096,
    ) -> None:
        self._run = run
        self._tell = tell
        self._remembered_max = remembered_max
        self._tasks: dict[AttemptKey, asyncio.Task[None]] = {}
        self._plans: dict[AttemptKey, Plan] = {}
        self._ended: dict[AttemptKey, Note | None] = {}
        self.seen = 0  # highest assignment number taken in

    def start(self, key: AttemptKey, plan: Plan) -> bool:
        """Begin an attempt; False if it runs already, or ran and its outcome was told again."""
        self.seen = max(self.seen, plan.assignment)
        if key in self._tasks:
            return False
        if key in self._ended:
            gone = HandbackNote(key, HandbackReason.PEER_LOST, "this attempt has ended here without an outcome")
            self._tell(self._ended[key] or gone)
            return False
        self._plans[key] = plan
        self._tasks[key] = asyncio.create_task(self._guarded(key, plan), name=f"attempt {key}")
        return True

    def cancel(self, key: AttemptKey) -> None:
        """Stop an attempt; it gives back what it holds on its own. Unknown and ended attempts are fine."""
        task = self._tasks.get(key)
        if task is not None:
            # Not at once: a task cancelled before its first step never runs, and would never give back what it counts.
            asyncio.get_running_loop().call_soon(_cancel, task)

    def has_ended(self, key: AttemptKey) -> bool:
        return key in self._ended

    def plans(self) -> Iterator[Plan]:
        return iter(self._plans.values())

    def running(self) -> tuple[AttemptKey, ...]:
        return tuple(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    async def cancel_all(self) -> None:
        """Stop every attempt and wait until each has given back what it held."""
        tasks = list(self._tasks.values())
        for key in tuple(self._tasks):
            self.cancel(key)
        if tasks:
            await asyncio.wait(tasks)

    async def _guarded(self, key: AttemptKey, plan: Plan) -> None:
        note: Note | None = None
        try:
            note = await self._run(key, plan)
        except Exception as error:  # a law of ours is broken: this attempt ends, the node goes on
            log.exception("attempt failed unexpectedly", turn=str(key))
            note = HandbackNote(key, HandbackReason.ENGINE_FAILED, f"{type(error).__name__}: {error}")
        finally:
            del self._tasks[key], self._plans[key]
            self._ended[key] = note
            while len(self._ended) > self._remembered_max:
                del self._ended[next(iter(self._ended))]
        if note is not None:
            self._tell(note)


def _cancel(task: "asyncio.Task[None]") -> None:
    if not task.cancelling():
        task.cancel()
