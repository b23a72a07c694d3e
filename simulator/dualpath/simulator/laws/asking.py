"""Asking a policy that may be anybody's: what it answers is looked at before it is believed, and written down.

A law asks through an `Asker` and gets a decision of the right type, or `NoAnswer`: then this law has nothing to judge,
and the two laws about answers as such say what was wrong.
"""

import contextlib
import math
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from enum import Enum
from numbers import Integral, Real
from types import FrameType
from typing import cast

from dualpath.model.turn import ReadSide
from dualpath.scheduler.policy.decisions import (
    DecodeDecision,
    GroupPlacement,
    Placement,
    PlacementReason,
    PrefillDecision,
    ReadReason,
    ReadSideDecision,
    StopReason,
)
from dualpath.scheduler.policy.registry import Policy
from dualpath.simulator.laws.cases import Arguments, Case, Function

Groups = tuple[GroupPlacement, ...]
Answer = PrefillDecision | DecodeDecision | Groups | ReadSideDecision
REPR_MAX = 120
_NOT_ITS_OWN = (__file__, contextlib.__file__)
CALL_CPU_S = 1.0  # processor time of one call; ours take some 0.00001 s on snapshots of this size


class NoAnswer(Exception):
    """The policy did not return; the text says why."""


class TooLong(NoAnswer):
    """The policy was still at work after `CALL_CPU_S`."""


class WrongAnswer(NoAnswer):
    """The policy returned something that is no decision; the text says what is wrong with it."""


class Asker:
    """Asks one policy and keeps what it answered as lines of text, for the counterexample."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.heard: list[str] = []

    def ask(self, case: Case, label: str = "", *, arguments: Arguments | None = None) -> Answer:
        """A decision of the type that this function has to give; raises NoAnswer, after noting what came instead.

        arguments  the case's own, made by the caller to look at them afterwards; else made anew
        """
        function = cast(Callable[..., object], getattr(self._policy, case.function))
        given = arguments or case.arguments()
        if label:
            self.heard.append(f"{label}:")
        try:
            with _cpu_limit():
                answer = function(*given.positional, **given.keywords)
        except _OutOfTime as out:
            said = f"was still at work after {CALL_CPU_S:g} s of processor time"
            self.heard += [said, *_raised_at(out)]
            raise TooLong(said) from out
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__}" + (f": {_cut(str(error))}" if str(error) else "")
            self.heard += [said, *_raised_at(error)]
            raise NoAnswer(said) from error
        self.heard += text_of(answer)
        if fault := fault_of(case.function, answer):
            raise WrongAnswer(fault)
        return cast(Answer, answer)


class _OutOfTime(BaseException):
    """No Exception: a policy that catches those must not catch this one."""


@contextlib.contextmanager
def _cpu_limit() -> Iterator[None]:
    """Ends a call that computes for ever. Signals reach the main thread only; in another one there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CALL_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def fault_of(function: Function, answer: object) -> str | None:
    """What is wrong with the type of an answer, or None."""
    match function:
        case Function.ASSIGN_PREFILL:
            return _type_fault(answer, PrefillDecision) or _line_fault(cast(PrefillDecision, answer))
        case Function.SPREAD_TO_GROUPS:
            return _placements_fault(answer, GroupPlacement, "the answer")
        case Function.ASSIGN_DECODE:
            return _type_fault(answer, DecodeDecision) or _decode_fault(cast(DecodeDecision, answer))
        case Function.CHOOSE_READ_SIDE:
            return _type_fault(answer, ReadSideDecision) or _side_fault(cast(ReadSideDecision, answer))


def text_of(answer: object) -> list[str]:
    """An answer in the words of a scenario; anything that is no decision as Python shows it."""
    match answer:
        case PrefillDecision() | DecodeDecision() if isinstance(answer.placements, tuple | list):
            waiting = f", {answer.waiting} waiting" if answer.waiting else ""
            return [*map(_placement_text, answer.placements), f"stop {answer.stop}{waiting}"]
        case ReadSideDecision():
            queues = f"pe {answer.pe_queue_tokens}, de {answer.de_queue_tokens}"
            return [f"t1 reads on {answer.side}   {_words(answer.reason)} ({queues})"]
        case tuple() | list() if answer and all(isinstance(item, GroupPlacement) for item in answer):
            return [*map(_placement_text, answer)]
        case ():
            return ["nothing"]
        case _:
            return [f"returned {_short(answer)}"]


def _placement_text(placement: object) -> str:
    match placement:
        case Placement():
            return f"{placement.turn_id} -> {placement.engine_id}   {_words(placement.reason)}"
        case GroupPlacement():
            return f"{placement.turn_id} -> {placement.group_id}   {_words(placement.reason)}"
        case _:
            return _short(placement)


def _raised_at(error: BaseException) -> list[str]:
    """The last line of the policy's own that was running, seen from here."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _NOT_ITS_OWN]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    if not own:
        return []
    last = own[-1]
    return [f"  {last.filename}, line {last.lineno}, in {last.name}", *([f"    {last.line}"] if last.line else [])]


def _line_fault(decision: PrefillDecision | DecodeDecision) -> str | None:
    return (
        _placements_fault(decision.placements, Placement, "placements")
        or _field_fault("stop", decision.stop, StopReason)
        or _count_fault("waiting", decision.waiting)
    )


def _decode_fault(decision: DecodeDecision) -> str | None:
    mark = decision.high_mark_tokens
    if not isinstance(mark, Real) or not math.isfinite(mark):
        return f"high_mark_tokens is {_short(mark)}, wanted a finite number"
    return _line_fault(decision)


def _side_fault(decision: ReadSideDecision) -> str | None:
    return (
        _field_fault("side", decision.side, ReadSide)
        or _field_fault("reason", decision.reason, ReadReason)
        or _count_fault("pe_queue_tokens", decision.pe_queue_tokens)
        or _count_fault("de_queue_tokens", decision.de_queue_tokens)
    )


def _placements_fault(found: object, wanted: type[Placement] | type[GroupPlacement], name: str) -> str | None:
    if not isinstance(found, tuple):
        return f"{name} is {_kind(found)}, wanted a tuple of {wanted.__name__}"
    for at, item in enumerate(found):
        if not isinstance(item, wanted):
            return f"item {at} of {name} is {_kind(item)}, wanted a {wanted.__name__}"
        for field, value in zip(item._fields, item, strict=True):
            if fault := _placement_field_fault(field, value):
                return f"item {at} of {name}: {fault}"
    return None


def _placement_field_fault(field: str, value: object) -> str | None:
    if field.endswith("_id"):
        return _field_fault(field, value, str)
    if field == "reason":
        return _field_fault(field, value, PlacementReason)
    return _count_fault(field, value)


def _type_fault(found: object, wanted: type) -> str | None:
    return None if isinstance(found, wanted) else f"the answer is {_kind(found)}, wanted a {wanted.__name__}"


def _field_fault(name: str, value: object, wanted: type) -> str | None:
    if isinstance(value, wanted):
        return None
    among = f", one of {', '.join(wanted.__members__)}" if issubclass(wanted, Enum) else ""
    return f"{name} is {_kind(value)}, wanted a {wanted.__name__}{among}"


def _count_fault(name: str, value: object) -> str | None:
    fine = isinstance(value, Integral) and not isinstance(value, bool)
    return None if fine else f"{name} is {_kind(value)}, wanted a whole number"


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {_short(value)}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"something whose repr raises {type(error).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= REPR_MAX else text[: REPR_MAX - 3] + "..."


def _words(reason: object) -> str:
    return str(reason).replace("_", " ")
