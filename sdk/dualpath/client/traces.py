"""Recorded agent sessions, read from several formats and scaled to a small model (paper §7).

    Claude Code CSV     columns session, is_subagent, input_tokens, hit_tokens, output_tokens (.csv, .csv.gz);
                        turn and t_s (order), think_s and api_s (pauses) if recorded
    Claude Code JSON    one session with hash ids per 64 tokens; t, think_time, api_time if recorded
    Mooncake JSONL      timestamp, input_length, output_length, hash_ids per 512 tokens; a shared prefix makes one
                        session
    simple JSONL        {"turns": [{"append": 300, "gen": 20}, ...]} per line, or a bare list of such pairs;
                        "start_s" of a session and "pause_s" of a turn if wanted

A recorded prompt that is shorter than the session so far (the agent compacted its context) becomes a turn that keeps
only the prefix which still hit, and appends the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from dualpath.client.trace_formats import read_recordings
from dualpath.client.trace_values import Call
from dualpath.model.errors import Rejected

SCALE_MAX = 100
PAUSE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One recorded turn: keep the first `keep` tokens of the context (None: all), append, generate.

    pause_s     from the end of the session's previous turn to this submission, never scaled. Where only submissions
                are recorded (Mooncake; a Claude call without think time) it is the time between the two submissions,
                less the previous call where its length is known: an upper bound. 0 for a first turn.
    recorded_*  whole prompt, hit part of it and generation before scaling; None: not recorded. Two turns that ask the
                same of an engine are equal whatever they were scaled from.
    """

    append: int
    gen: int
    keep: int | None = None
    pause_s: float = 0.0
    recorded_prompt: int | None = field(default=None, compare=False)
    recorded_hit: int | None = field(default=None, compare=False)
    recorded_gen: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TraceSession:
    """One recorded session in order.

    start_s  first submission, from the start of the recording; 0 where each session was recorded on its own (Claude)
    """

    name: str
    turns: tuple[TraceTurn, ...]
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """What a trace holds, as recorded: no number depends on the scale it was read with.

    sessions              that have a turn
    turns                 of all sessions
    turns_mean, _median   turns per session
    input_*_tokens        whole prompt of a turn
    append_median_tokens  prompt of a turn beyond its hit, first turns too; what it appends where no hit is recorded
    output_mean_tokens    generation of a turn
    token_hit_rate        hit tokens over prompt tokens of all turns whose hit is recorded; None: there are none.
                          A Mooncake request hits up to the block that linked it to its session; what it shares with
                          other sessions beyond that does not count.
    pause_*_s             over all turns but each session's first; None: there are no others. p90 is the first value
                          after 90 % of the sorted ones.
    """

    sessions: int
    turns: int
    turns_mean: float
    turns_median: float
    input_mean_tokens: float
    input_median_tokens: float
    append_median_tokens: float
    output_mean_tokens: float
    token_hit_rate: float | None
    pause_median_s: float | None
    pause_p90_s: float | None


def read_trace(path: Path, *, scale: float = 1.0) -> tuple[TraceSession, ...]:
    """All sessions of a trace; lengths times `scale`, at least one token each.

    raises  Rejected naming the file, the line, the field, what was found and what was wanted
    """
    if not 0 < scale <= SCALE_MAX:
        raise Rejected(f"scale is {scale}, wanted more than 0 and at most {SCALE_MAX}", field="scale")
    return tuple(
        TraceSession(recording.name, tuple(_turns(recording.calls, scale)), recording.start_s)
        for recording in read_recordings(path)
    )


def trace_counts(sessions: Iterable[TraceSession]) -> TraceCounts:
    """Count what was recorded; raises Rejected if no session has a turn."""
    lengths: list[int] = []
    prompts: list[int] = []
    appends: list[int] = []
    gens: list[int] = []
    pauses_s: list[float] = []
    hits = hit_prompts = 0
    for session in sessions:
        if not session.turns:
            continue
        lengths.append(len(session.turns))
        pauses_s.extend(turn.pause_s for turn in session.turns[1:])
        for turn, prompt in zip(session.turns, _prompts(session.turns), strict=True):
            prompts.append(prompt)
            gens.append(turn.gen if turn.recorded_gen is None else turn.recorded_gen)
            if turn.recorded_hit is None:
                appends.append(turn.append)
            else:
                appends.append(prompt - turn.recorded_hit)
                hits += turn.recorded_hit
                hit_prompts += prompt
    if not lengths:
        raise Rejected("no session has a turn, wanted at least one to count", field="trace")
    return TraceCounts(
        sessions=len(lengths),
        turns=len(prompts),
        turns_mean=fmean(lengths),
        turns_median=median(lengths),
        input_mean_tokens=fmean(prompts),
        input_median_tokens=median(prompts),
        append_median_tokens=median(appends),
        output_mean_tokens=fmean(gens),
        token_hit_rate=hits / hit_prompts if hit_prompts else None,
        pause_median_s=median(pauses_s) if pauses_s else None,
        pause_p90_s=sorted(pauses_s)[int(PAUSE_SHARE * len(pauses_s))] if pauses_s else None,
    )


def select(
    sessions: Iterable[TraceSession], *, count: int | None, turns_max: int | None, context_max: int | None
) -> tuple[TraceSession, ...]:
    """The first `count` sessions, each cut to `turns_max` turns and before its context passes `context_max` tokens."""
    chosen: list[TraceSession] = []
    for session in sessions:
        cut = _cut(session, turns_max, context_max)
        if cut.turns:
            chosen.append(cut)
        if count is not None and len(chosen) == count:
            break
    return tuple(chosen)


def _cut(session: TraceSession, turns_max: int | None, context_max: int | None) -> TraceSession:
    turns: list[TraceTurn] = []
    context = 0
    for turn in session.turns[:turns_max]:
        context = (context if turn.keep is None else min(turn.keep, context)) + turn.append + turn.gen
        if context_max is not None and context > context_max:
            break
        turns.append(turn)
    return replace(session, turns=tuple(turns))


def _turns(calls: Sequence[Call], scale: float) -> Iterator[TraceTurn]:
    """Whole prompts become appends. Prompts are scaled, not appends: rounding does not add up over a session."""
    context = recorded_context = 0
    for call in calls:
        prompt, gen = _scaled(call.prompt, scale), _scaled(call.gen, scale)
        if call.append is not None:
            yield _turn(call, _scaled(call.append, scale), gen)
            continue
        if call.prompt > recorded_context and prompt > context:
            yield _turn(call, prompt - context, gen)
            context = prompt + gen
        elif call.prompt > recorded_context:  # so short an append that scaling took it away
            yield _turn(call, 1, gen)
            context += 1 + gen
        else:
            keep = min(round((call.hit or 0) * scale), prompt - 1, context)
            yield _turn(call, prompt - keep, gen, keep)
            context = prompt + gen
        recorded_context = call.prompt + call.gen


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))


def _turn(call: Call, append: int, gen: int, keep: int | None = None) -> TraceTurn:
    return TraceTurn(
        append,
        gen,
        keep,
        pause_s=call.pause_s,
        recorded_prompt=call.prompt,
        recorded_hit=call.hit,
        recorded_gen=call.gen,
    )


def _prompts(turns: Sequence[TraceTurn]) -> Iterator[int]:
    """The whole prompt of each turn: as recorded, or of a session that was made by hand."""
    context = 0
    for turn in turns:
        kept = context if turn.keep is None else min(turn.keep, context)
        yield kept + turn.append if turn.recorded_prompt is None else turn.recorded_prompt
        context = kept + turn.append + turn.gen
