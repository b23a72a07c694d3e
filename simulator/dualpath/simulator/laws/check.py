"""Trying a policy on many situations, and the smallest one in which it breaks each law.

First every law looks at the same situations, drawn from a seed. Then each law that was broken is searched for alone,
and the situation is shrunk as long as that law stays broken. A policy that keeps the laws pays for the first part only.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis.configuration import set_hypothesis_home_dir, storage_directory
from hypothesis.errors import Flaky, NoSuchExample

from dualpath.scheduler.policy.registry import POLICIES, Policy
from dualpath.simulator.laws.asking import Asker, NoAnswer, TooLong
from dualpath.simulator.laws.cases import Case, Function
from dualpath.simulator.laws.laws import LAWS, Law
from dualpath.simulator.laws.strategies import any_cases, idle_cases
from dualpath.simulator.policy_file import own_functions

RETURNS = next(law for law in LAWS if law.name == "returns")


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold, and the smallest situation found in which it does not.

    situation, answer  lines of text in the words of a scenario
    found              what is wrong with the answer
    """

    function: Function
    law: Law
    situation: tuple[str, ...]
    answer: tuple[str, ...]
    found: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at, and every breach."""

    policy: str
    functions: tuple[Function, ...]
    laws: tuple[tuple[Function, Law], ...]
    breaches: tuple[Breach, ...]


def check_policy(
    policy: Policy,
    *,
    examples: int,
    seed: int,
    told: Callable[[Function], None] = lambda function: None,
) -> Checked:
    """Each function of the policy's own (all four of one of ours) against each of its laws.

    examples  situations per function, and as many of an idle cell
    told      hears of each function before it is looked at
    """
    functions = tuple(Function) if policy.name in POLICIES else tuple(map(Function, own_functions(policy)))
    breaches: list[Breach] = []
    for function in functions:
        told(function)
        with _nothing_kept():
            breaches += _breaches_of(policy, function, examples=examples, seed=seed)
    laws = tuple((function, law) for function in functions for law in LAWS if function in law.functions)
    return Checked(policy.name, functions, laws, tuple(breaches))


class _Stopped(BaseException):
    """An endless call, as the breach that it is. No Exception: the search would shrink it, a second per step."""

    def __init__(self, breach: Breach) -> None:
        super().__init__()
        self.breach = breach


def _breaches_of(policy: Policy, function: Function, *, examples: int, seed: int) -> list[Breach]:
    laws = [law for law in LAWS if function in law.functions]
    first: dict[str, Breach] = {}
    for idle in (False, True):
        asked = [law for law in laws if law.idle is idle]
        if _look(policy, function, asked, first, idle=idle, examples=examples, seed=seed):
            return [first["returns"]]  # an endless call would cost its time limit again for every step of a search
    broken = [law for law in laws if law.name in first and law.unless not in first]
    return [_shrunk(policy, first[law.name], examples=examples, seed=seed) for law in broken]


def _look(
    policy: Policy,
    function: Function,
    laws: Sequence[Law],
    first: dict[str, Breach],
    *,
    idle: bool,
    examples: int,
    seed: int,
) -> bool:
    """Note the first breach of each law; true if a call had to be ended, and with it the search."""

    def judged(case: Case) -> bool:
        for law in laws:
            if law.name not in first and (breach := _breach(policy, law, case)):
                first[law.name] = breach
        return False

    try:
        _search(function, judged, idle=idle, examples=examples, seed=seed, shrink=False)
    except NoSuchExample:
        return False
    except _Stopped as stopped:
        first["returns"] = stopped.breach
        return True
    raise AssertionError("nothing is ever found by a condition that does not hold")


def _shrunk(policy: Policy, first: Breach, *, examples: int, seed: int) -> Breach:
    """The same law in a smaller situation; the one at hand if the search does not come across it again."""
    smallest = first

    def broken(case: Case) -> bool:
        nonlocal smallest
        breach = _breach(policy, first.law, case)
        if breach is not None and _size(breach) < _size(smallest):
            smallest = breach
        return breach is not None

    # A policy that answers now so, now so, is flaky to the search: then the smallest that was seen is told.
    with suppress(NoSuchExample, Flaky, _Stopped):
        case = _search(first.function, broken, idle=first.law.idle, examples=examples, seed=seed, shrink=True)
        return _breach(policy, first.law, case) or smallest
    return smallest


def _breach(policy: Policy, law: Law, case: Case) -> Breach | None:
    """raises _Stopped if the call had to be ended"""
    asker = Asker(policy)
    try:
        found = law.judge(asker, case)
    except TooLong as endless:
        raise _Stopped(_told(RETURNS, case, asker, f"it {endless}")) from endless
    except NoAnswer:
        return None
    return None if found is None else _told(law, case, asker, found)


def _told(law: Law, case: Case, asker: Asker, found: str) -> Breach:
    return Breach(case.function, law, tuple(case.story()), tuple(asker.heard), found)


def _size(breach: Breach) -> tuple[int, int]:
    return len(breach.situation), sum(map(len, breach.situation))


def _search(
    function: Function, condition: Callable[[Case], bool], *, idle: bool, examples: int, seed: int, shrink: bool
) -> Case:
    """raises NoSuchExample if the condition never holds, Flaky if it holds only now and then"""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    return find(
        idle_cases(function) if idle else any_cases(function),
        condition,
        settings=settings(
            max_examples=examples,
            phases=phases,
            database=None,
            deadline=None,
            derandomize=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        ),
        random=random.Random(f"{seed}/{function}/{idle}"),
    )


@contextmanager
def _nothing_kept() -> Iterator[None]:
    """Hypothesis keeps notes in .hypothesis, wherever one stands; given a place that cannot be, it goes without."""
    before = storage_directory(intent_to_write=False).home_directory
    set_hypothesis_home_dir(Path(os.devnull) / "hypothesis")
    try:
        yield
    finally:
        set_hypothesis_home_dir(before)
