"""The laws of placement: what any policy has to keep, whatever it prefers.

A law looks at one situation, asks the policy, and says what is wrong, or None. Laws speak of what would break a cell or
leave a turn for ever, never of how good a choice is: that is what `dualpath sim compare` is for.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dualpath.scheduler.policy.decisions import (
    DecodeDecision,
    GroupPlacement,
    Placement,
    PrefillDecision,
    ReadSideDecision,
    StopReason,
)
from dualpath.scheduler.policy.snapshot import DecodeSnapshot, EngineView, PrefillSnapshot, WaitingTurn
from dualpath.simulator.laws.asking import Answer, Asker, NoAnswer, WrongAnswer
from dualpath.simulator.laws.cases import Case, DecodeCase, Form, Function, PrefillCase, ReadCase, SpreadCase

Judge = Callable[[Asker, Case], str | None]  # raises NoAnswer where there is nothing to judge

EVERY = tuple(Function)
PLACING = (Function.ASSIGN_PREFILL, Function.SPREAD_TO_GROUPS, Function.ASSIGN_DECODE)
FETCHING = (Function.ASSIGN_PREFILL, Function.ASSIGN_DECODE)
ASKED_AGAIN = 5  # more often than there are engines: who counts his calls comes round to another answer


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    idle    judged where turns wait and nothing stands in their way, else in any situation
    unless  the name of a law whose breach explains this one: then only that one is told
    """

    name: str
    sentence: str
    functions: tuple[Function, ...]
    judge: Judge
    idle: bool = False
    unless: str = ""


# ---- answers as such


def returns(asker: Asker, case: Case) -> str | None:
    try:
        asker.ask(case)
    except WrongAnswer:
        return None
    except NoAnswer as none:
        return f"it {none}"
    return None


def right_types(asker: Asker, case: Case) -> str | None:
    try:
        asker.ask(case)
    except WrongAnswer as wrong:
        return str(wrong)
    return None


def same_answer_again(asker: Asker, case: Case) -> str | None:
    # The search sets chance to the same state before every case; a policy that leans on chance must not profit.
    random.seed(f"{case}")
    first = asker.ask(case, "asked once")
    heard = len(asker.heard)
    for time in range(1, ASKED_AGAIN + 1):
        del asker.heard[heard:]
        random.seed(f"{time} {case}")
        if asker.ask(case, "asked again") != first:
            return "two answers to one and the same snapshot"
    return None


def changes_nothing(asker: Asker, case: Case) -> str | None:
    arguments = case.arguments()
    asker.ask(case, arguments=arguments)
    was = _parts(case, case.arguments().positional)
    changed = [name for name, value in _parts(case, arguments.positional).items() if value != was[name]]
    return f"the call changed {', '.join(changed)}" if changed else None


def takes_any_sequence(asker: Asker, case: Case) -> str | None:
    asker.ask(case, "asked with lists")
    try:
        asker.ask(case, "asked with a line that is no list", arguments=case.arguments(Form.READ_ONLY))
    except NoAnswer as none:
        return f"it {none}" if not isinstance(none, WrongAnswer) else str(none)
    return None


def any_order(asker: Asker, case: Case) -> str | None:
    first = asker.ask(case, "asked")
    turned = asker.ask(_turned(case), "asked with the same in reverse order, each with its rank")
    return None if turned == first else "the answer hangs on the order; ties fall by rank and rotation"


# ---- placements


def in_order(asker: Asker, case: Case) -> str | None:
    placed = list(dict.fromkeys(p.turn_id for p in _placements(asker.ask(case))))
    line = [turn.turn_id for turn in _line(case)]
    strangers = [turn_id for turn_id in placed if turn_id not in line]
    if strangers:
        return f"{', '.join(strangers)} is not in the line"
    # Whether all are placed is a law of its own where turns are spread; so there an order with gaps will do.
    wanted = [t for t in line if t in placed] if isinstance(case, SpreadCase) else line[: len(placed)]
    return None if placed == wanted else f"placed {', '.join(placed)}, wanted {', '.join(wanted)}"


def no_turn_twice(asker: Asker, case: Case) -> str | None:
    times = Counter(p.turn_id for p in _placements(asker.ask(case)))
    twice = [f"{turn_id} {count} times" for turn_id, count in times.items() if count > 1]
    return f"placed {', '.join(twice)}" if twice else None


def known_places(asker: Asker, case: Case) -> str | None:
    places = _places(case)
    strange = dict.fromkeys(_place_of(p) for p in _placements(asker.ask(case)) if _place_of(p) not in places)
    wanted = f"one of {', '.join(places)}" if places else "none, there is none"
    return f"placed on {', '.join(strange)}, wanted {wanted}" if strange else None


def within_free_hbm(asker: Asker, case: Case) -> str | None:
    assert isinstance(case, DecodeCase)
    free = {engine.engine_id: engine.free_hbm_tokens for engine in case.snapshot.engines}
    turns = {turn.turn_id: turn for turn in case.snapshot.waiting}
    for p in _placements(asker.ask(case)):
        if not isinstance(p, Placement) or p.turn_id not in turns or p.engine_id not in free:
            continue
        needed = turns[p.turn_id].total_tokens_max
        if needed > free[p.engine_id]:
            return f"{p.turn_id} needs {needed} tokens of HBM, {p.engine_id} has {free[p.engine_id]} left"
        free[p.engine_id] -= needed
    return None


def every_turn_or_none(asker: Asker, case: Case) -> str | None:
    placed = {p.turn_id for p in _placements(asker.ask(case))}
    left = [turn.turn_id for turn in _line(case) if turn.turn_id not in placed]
    return f"left {', '.join(left)} behind" if placed and left else None


def progress(asker: Asker, case: Case) -> str | None:
    head = _line(case)[0].turn_id
    if _placements(asker.ask(case)):
        return None
    what = "a group is there" if isinstance(case, SpreadCase) else "an idle engine has room"
    return f"{what}, and {head} at the head stays where it is: it would wait for ever"


# ---- what a decision says of itself


def honest_stop(asker: Asker, case: Case) -> str | None:
    decision = asker.ask(case)
    assert isinstance(decision, PrefillDecision | DecodeDecision)
    left = len(_line(case)) - len({p.turn_id for p in decision.placements})
    if decision.waiting != left:
        return f"waiting is {decision.waiting}, wanted {left}: {len(_line(case))} in line less those placed"
    engines = bool(_places(case))
    if decision.stop is StopReason.NO_ENGINES and engines:
        return "stop is no_engines, and there are engines"
    if decision.stop is StopReason.EMPTY_QUEUE and left:
        return f"stop is empty_queue, and {left} turns are left"
    if left and not engines and decision.stop is not StopReason.NO_ENGINES:
        return f"stop is {decision.stop}, wanted no_engines: there are none"
    if not left and engines and decision.stop is not StopReason.EMPTY_QUEUE:
        return f"stop is {decision.stop}, wanted empty_queue: no turn is left"
    return None


def true_numbers(asker: Asker, case: Case) -> str | None:
    match case, asker.ask(case):
        case ReadCase(), ReadSideDecision() as decision:
            pe = _difference("pe_queue_tokens", decision.pe_queue_tokens, _queue(case, case.pe_node))
            return pe or _difference("de_queue_tokens", decision.de_queue_tokens, _queue(case, case.de_node))
        case SpreadCase(), tuple() as placements:
            return _first(_group_differences(case, _placements(placements)))
        case (PrefillCase() | DecodeCase()) as fetch, answer:
            return _first(_engine_differences(fetch, _placements(answer)))
    return None


def _group_differences(case: SpreadCase, placements: Sequence[Placement | GroupPlacement]) -> list[str | None]:
    prompts = {turn.turn_id: turn.prompt_tokens for turn in case.turns}
    tokens: dict[str, int] = {group.group_id: group.open_tokens + group.queued_tokens for group in case.groups}
    found = []
    for p in placements:
        if isinstance(p, GroupPlacement) and p.group_id in tokens:
            found.append(_difference(f"group_tokens of {p.turn_id}", p.group_tokens, tokens[p.group_id]))
            tokens[p.group_id] += prompts.get(p.turn_id, 0)
    return found


def _engine_differences(
    case: PrefillCase | DecodeCase, placements: Sequence[Placement | GroupPlacement]
) -> list[str | None]:
    engines = {engine.engine_id: engine for engine in case.snapshot.engines}
    turns = {turn.turn_id: turn for turn in case.snapshot.waiting}
    found: list[str | None] = []
    for p in placements:
        if isinstance(p, Placement) and p.engine_id in engines and p.turn_id in turns:
            engine, turn = engines[p.engine_id], turns[p.turn_id]
            found += [_difference(f"{n} of {p.turn_id}", getattr(p, n), w) for n, w in _shown(case, engine).items()]
            engines[p.engine_id] = engine._replace(
                open_turns=engine.open_turns + 1,
                open_tokens=engine.open_tokens + turn.prompt_tokens,
                free_hbm_tokens=engine.free_hbm_tokens - turn.total_tokens_max,
            )
    return found


def _shown(case: PrefillCase | DecodeCase, engine: EngineView) -> Mapping[str, int]:
    """What a placement has to show: read queues count for PEs only, HBM for DEs only."""
    shown = {"open_tokens": engine.open_tokens, "open_turns": engine.open_turns}
    match case:
        case PrefillCase():
            return shown | {"read_queue_tokens": case.snapshot.read_queue_tokens.get(engine.node_id, 0)}
        case DecodeCase():
            return shown | {"free_hbm_tokens": engine.free_hbm_tokens}


def _difference(name: str, found: int, wanted: int) -> str | None:
    return None if found == wanted else f"{name} is {found}, wanted {wanted}"


def _first(found: Sequence[str | None]) -> str | None:
    return next((text for text in found if text), None)


LAWS: tuple[Law, ...] = (
    Law("returns", "It returns for every snapshot: no exception, no endless loop.", EVERY, returns),
    Law("right_types", "It returns what it promises: our decision types and enums.", EVERY, right_types),
    Law("same_answer_again", "The same snapshot gets the same answer.", EVERY, same_answer_again),
    Law("changes_nothing", "It changes nothing of what it is given.", EVERY, changes_nothing),
    Law("takes_any_sequence", "It only reads: a line is a sequence, not always a list.", EVERY, takes_any_sequence,
        unless="changes_nothing"),
    Law("any_order", "The order in which engines or groups are listed decides nothing.", PLACING, any_order,
        unless="same_answer_again"),
    Law("in_order", "Turns leave a line at its head: those placed are a prefix, in order.", PLACING, in_order),
    Law("no_turn_twice", "No turn is placed twice.", PLACING, no_turn_twice),
    Law("known_places", "Turns go to engines or groups of the snapshot and nowhere else.", PLACING, known_places),
    Law("within_free_hbm", "No DE gets more than its free HBM: prompt and all it may generate.",
        (Function.ASSIGN_DECODE,), within_free_hbm),
    Law("every_turn_or_none", "The decode queue is spread whole or not at all.", (Function.SPREAD_TO_GROUPS,),
        every_turn_or_none),
    Law("progress", "If nothing stands in its way, the turn at the head is placed.", PLACING, progress, idle=True),
    Law("honest_stop", "The stop and the count of waiting turns say how the line was left.", FETCHING, honest_stop),
    Law("true_numbers", "The numbers shown are the loads just before each choice.", EVERY, true_numbers),
)  # fmt: skip


# ---- one view of the four functions


def _placements(answer: Answer) -> Sequence[Placement | GroupPlacement]:
    match answer:
        case PrefillDecision() | DecodeDecision():
            return answer.placements
        case ReadSideDecision():
            return ()
        case _:
            return answer


def _place_of(placement: Placement | GroupPlacement) -> str:
    return placement.engine_id if isinstance(placement, Placement) else placement.group_id


def _line(case: Case) -> Sequence[WaitingTurn]:
    match case:
        case PrefillCase() | DecodeCase():
            return case.snapshot.waiting
        case SpreadCase():
            return case.turns
        case ReadCase():
            return ()


def _places(case: Case) -> Sequence[str]:
    match case:
        case PrefillCase() | DecodeCase():
            return [engine.engine_id for engine in case.snapshot.engines]
        case SpreadCase():
            return [group.group_id for group in case.groups]
        case ReadCase():
            return ()


def _turned(case: Case) -> Case:
    """The same situation with its engines or groups listed from the last to the first."""
    match case:
        case PrefillCase():
            return replace(case, snapshot=replace(case.snapshot, engines=case.snapshot.engines[::-1]))
        case DecodeCase():
            return replace(case, snapshot=replace(case.snapshot, engines=case.snapshot.engines[::-1]))
        case SpreadCase():
            return replace(case, groups=case.groups[::-1])
        case ReadCase():
            return case


def _queue(case: ReadCase, node: str) -> int:
    return {str(name): tokens for name, tokens in case.read_queue_tokens.items()}.get(node, 0)


def _parts(case: Case, positional: Sequence[object]) -> Mapping[str, object]:
    """The arguments that could be changed, each by its name."""
    match case:
        case SpreadCase():
            return {"the line": positional[0], "the groups": positional[1]}
        case ReadCase():
            return {"the read queues": positional[2]}
        case PrefillCase() | DecodeCase():
            snapshot = positional[0]
            assert isinstance(snapshot, PrefillSnapshot | DecodeSnapshot)
            parts = {"the line": snapshot.waiting, "the engines": snapshot.engines, "the rotation": snapshot.rotation}
            return parts | {"the read queues": getattr(snapshot, "read_queue_tokens", None)}
