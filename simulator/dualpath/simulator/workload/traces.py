"""Recorded sessions as a simulator takes them: what each turn appends, keeps and generates, its pause, its start."""

from array import array
from dataclasses import dataclass
from pathlib import Path

from dualpath.client.traces import TraceCounts, TraceSession, read_trace, trace_counts
from dualpath.simulator.workload.sessions import Session

KEEPS_ALL = -1


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """A trace, ready to be simulated.

    starts_s  first submission of each session, from the start of the recording (all 0 where none is recorded)
    counts    of the trace as recorded, whatever the scale
    """

    sessions: tuple[Session, ...]
    starts_s: tuple[float, ...]
    counts: TraceCounts


def trace_sessions(path: Path, *, scale: float = 1.0) -> TraceWorkload:
    """All sessions of a trace that have a turn, lengths times `scale`; pauses and starts are not scaled.

    raises  Rejected naming the file, the line, the field, what was found and what was wanted
    """
    recorded = [session for session in read_trace(path, scale=scale) if session.turns]
    return TraceWorkload(
        sessions=tuple(_session(session, scale) for session in recorded),
        starts_s=tuple(session.start_s for session in recorded),
        counts=trace_counts(recorded),
    )


def _session(recorded: TraceSession, scale: float) -> Session:
    """Where a recorded hit is shorter than the context that a turn keeps, the rest is appended again: it was no hit."""
    keeps, appends = array("l"), array("l")
    context = 0
    for turn in recorded.turns:
        kept = context if turn.keep is None else min(turn.keep, context)
        prompt = kept + turn.append
        hit = kept if turn.recorded_hit is None else min(kept, round(turn.recorded_hit * scale))
        keeps.append(KEEPS_ALL if hit == context else hit)
        appends.append(prompt - hit)
        context = prompt + turn.gen
    return Session(
        appends=appends,
        gens=array("l", [turn.gen for turn in recorded.turns]),
        pauses_s=array("d", [turn.pause_s for turn in recorded.turns]),
        keeps=keeps,
    )
