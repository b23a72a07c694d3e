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
        sessions=tuple(_session(session) for session in recorded),
        starts_s=tuple(session.start_s for session in recorded),
        counts=trace_counts(recorded),
    )


def _session(recorded: TraceSession) -> Session:
    turns = recorded.turns
    return Session(
        appends=array("l", [turn.append for turn in turns]),
        gens=array("l", [turn.gen for turn in turns]),
        pauses_s=array("d", [turn.pause_s for turn in turns]),
        keeps=array("l", [KEEPS_ALL if turn.keep is None else turn.keep for turn in turns]),
    )
