"""Emulated clients: each wants one turn, submits it again under the same key until it hears of its end, may cancel."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dualpath.model.errors import Refused, Rejected
from dualpath.model.ids import ROOT_KEY, BlockKey, SessionId
from dualpath.model.turn import TurnState
from dualpath.scheduler.service.intake import Submission
from dualpath.scheduler.service.messages import Refusal, TurnNews
from dualpath.simulator.chaos.history import Event, Promise
from dualpath.simulator.chaos.network import Way
from dualpath.simulator.chaos.process import Process, submission_of
from dualpath.simulator.chaos.weather import Fault

if TYPE_CHECKING:
    from dualpath.simulator.chaos.world import World

ASK_AGAIN_S = 0.7  # without a word for so long the client submits again
PATIENT_DEADLINE_S = 60.0


class Session:
    """A growing context: what the last committed turn left."""

    __slots__ = ("context", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.context: tuple[BlockKey, int] = (ROOT_KEY, 0)


class Client:
    """One turn, from its first submission to the news of its end."""

    def __init__(self, world: "World", number: int, session: Session, ended: Callable[["Client"], None]) -> None:
        chance = world.client_chance
        self.world = world
        self.key = f"k{number}"
        self.session = session
        self.session_id = SessionId(str(session.number))
        self.ended = ended
        self.is_done = False
        self.max_new_tokens = chance.randrange(1, 9)
        self.down = Way(lambda: self.lost(None))
        self.up = Way(lambda: self.lost(None))
        self._process: Process | None = None
        self._stream = 0  # what an older one still brings is not heard
        self._tokens = tuple(range(number * 64, number * 64 + chance.randrange(1, 17)))
        self._context = session.context
        self._sent = 0
        self._timer = 0
        short = chance.random() < world.weather.unruly_p
        self.deadline_s = round(chance.uniform(0.1, 1.2), 3) if short else PATIENT_DEADLINE_S
        self.poison = not world.weather.calm and chance.random() < world.weather.unruly_p / 3
        if short:
            world.hit(Fault.DEADLINE_SHORT, "submit")
        self._cancels_in_s = chance.uniform(0.0, 0.8) if chance.random() < world.weather.unruly_p else None
        cancels = self._cancels_in_s is not None
        world.run.promises[self.key] = Promise(self.key, self.deadline_s, self.poison, not short, cancels)

    def submission(self) -> Submission:
        return submission_of(self, self._tokens, self._context)

    def start(self, _: object) -> None:
        world = self.world
        self._context = self.session.context
        world.note(Event.SUBMITTED, self.key)
        self._send()
        if self._cancels_in_s is not None:
            world.timeline.at(world.timeline.now_s + self._cancels_in_s, self._cancel)

    def _send(self) -> None:
        """Submit to whoever serves, and look again later."""
        world = self.world
        self._timer += 1
        world.timeline.at(world.timeline.now_s + ASK_AGAIN_S, self._look, self._timer)
        process = world.serving()
        if process is None:
            return
        self._process = process
        self._sent += 1
        if self._sent == 2:
            world.hit(Fault.SUBMITTED_AGAIN, "client")
        world.network.carry(self.up, "submit", process.take_submission, (self, self._stream))

    def _look(self, timer: int) -> None:
        if timer == self._timer and not self.is_done:
            self._send()

    def lost(self, process: Process | None) -> None:
        """The stream broke, or the scheduler died: soon submit again."""
        if not self.is_done and (process is None or process is self._process):
            self._process = None
            self._stream += 1
            self._timer += 1
            timeline = self.world.timeline
            timeline.at(timeline.now_s + self.world.client_chance.uniform(0.05, 0.3), self._look, self._timer)

    def _cancel(self, _: object) -> None:
        process = self.world.serving()
        if process is not None and not self.is_done:
            self.world.network.carry(self.up, "cancel", process.take_cancel, self)

    def hear(self, item: tuple[Process, int, TurnNews | Refusal]) -> None:
        """News of the turn, or why it was not taken."""
        process, stream, news = item
        if self.is_done or process is not self._process or stream != self._stream:
            return
        match news:
            case Refusal(_, error):
                self._refused(error)
            case TurnNews():
                self._timer += 1
                if news.state.is_terminal:
                    self._hear_end(news)

    def _refused(self, error: Exception) -> None:
        world = self.world
        if isinstance(error, Refused):
            self._timer += 1
            world.timeline.at(world.timeline.now_s + min(0.3, error.retry_after_s), self._look, self._timer)
        elif isinstance(error, Rejected) and error.reason == "CONTEXT_UNKNOWN":
            self._tokens = (0,) * self._context[1] + self._tokens  # the whole prompt
            self._context = (ROOT_KEY, 0)
            self._send()
        else:
            world.breach("every_turn_ends", f"{self.key} was turned away: {error!r}")
            self._done()

    def _hear_end(self, news: TurnNews) -> None:
        result = news.result
        mark = result.tokens[0] if result is not None and result.tokens else 0
        reason = result.end_reason.value if result is not None else ""
        self.world.note(Event.NEWS, self.key, news.turn_id, news.attempt, news.state.value, reason, mark)
        if news.state is TurnState.COMMITTED and result is not None:
            self.session.context = (result.context_key, result.context_tokens)
        elif reason == "context_lost":
            self.session.context = (ROOT_KEY, 0)
        self._done()

    def _done(self) -> None:
        self.is_done = True
        if self._process is not None:
            self._process.clients.pop(self, None)
        self.ended(self)
