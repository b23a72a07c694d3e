"""What a seed brings: how bad the network and the store are, which faults come when. Drawn before the run starts."""

import random
from dataclasses import dataclass
from enum import StrEnum

HEAL_FIRST_S, HEAL_LAST_S = 1.5, 2.6  # in between, nothing new goes wrong any more, and what is down comes back
CALM_EVERY = 40  # every so many seeds a run without faults, in which turns come one at a time

CALM_TURNS = 16


class Fault(StrEnum):
    """What can go wrong. The first four happen to single frames, the next five to calls of the store."""

    FRAME_LOST = "frame_lost"
    FRAME_TWICE = "frame_twice"
    FRAME_LATE = "frame_late"  # and all behind it on its stream
    FRAME_OVERTAKEN = "frame_overtaken"
    STORE_REFUSES = "store_refuses"
    STORE_RESTARTS = "store_restarts"  # what it has answered is still there
    RECORD_DAMAGED = "record_damaged"  # one bit of what a scheduler reads when it takes over
    STORE_ANSWER_LOST = "store_answer_lost"  # written, and nobody knows
    CRASH_AFTER_WRITE = "crash_after_write"  # the scheduler dies between the write and all it wanted to say
    SCHEDULER_CRASH = "scheduler_crash"
    SCHEDULER_FREEZE = "scheduler_freeze"  # it wakes up later and goes on, deposed or not
    LEADER_CRASH = "leader_crash"  # and comes back under the same name with a higher epoch
    LEADER_PAUSE = "leader_pause"  # it wakes up later and says what it wanted to say
    CUT_UP = "cut_up"
    CUT_DOWN = "cut_down"
    CUT_BOTH = "cut_both"
    STREAM_BREAK = "stream_break"
    LEADER_DRAIN = "leader_drain"
    ENGINE_LEAVES = "engine_leaves"
    # what clients and agents do of their own accord
    TURN_CANCELLED = "turn_cancelled"
    DEADLINE_SHORT = "deadline_short"
    SUBMITTED_AGAIN = "submitted_again"
    HANDBACK = "handback"
    CONTEXT_LOST = "context_lost"
    POISON = "poison"  # whoever works on the turn dies
    REPORT_LIES = "report_lies"
    RARE_WAY = "rare_way"  # the service went a way that production seldom goes: see rare.py


PLANNED = (
    Fault.SCHEDULER_CRASH,
    Fault.SCHEDULER_FREEZE,
    Fault.CRASH_AFTER_WRITE,
    Fault.STORE_RESTARTS,
    Fault.LEADER_CRASH,
    Fault.LEADER_CRASH,
    Fault.LEADER_PAUSE,
    Fault.LEADER_PAUSE,
    Fault.CUT_UP,
    Fault.CUT_DOWN,
    Fault.CUT_BOTH,
    Fault.STREAM_BREAK,
    Fault.LEADER_DRAIN,
    Fault.ENGINE_LEAVES,
)


@dataclass(frozen=True, slots=True)
class Weather:
    """One seed's share of trouble.

    frame_p      chance of each of the four things that can happen to a frame
    store_wait_s longest usual time of a call of the store, 0 for at once
    store_p      chance of each of its faults
    damage_p     chance that a scheduler reads one bit wrong when it takes over
    commit_max   change sets in one call of the store
    clock_rate   seconds of the schedulers' clocks per second
    rare_p       how often a point in the service takes its rare way
    heal_s       when all of it ends
    planned      (second, fault, number that picks whom it hits, seconds it lasts)
    """

    seed: int
    turns: int
    prefill_groups: int
    decode_groups: int
    calm: bool
    frame_p: float
    store_wait_s: float
    store_p: float
    damage_p: float
    commit_max: int
    clock_rate: float
    rare_p: float
    unruly_p: float
    lies: bool
    heal_s: float
    planned: tuple[tuple[float, Fault, int, float], ...]


def weather_of(seed: int, turns: int) -> Weather:
    """The same seed, the same weather. `turns` at most, in a run with faults."""
    chance = random.Random(f"weather {seed}")
    if seed % CALM_EVERY == 0:
        return Weather(seed, max(turns, CALM_TURNS), 2, 2, True, 0.0, 0.0, 0.0, 0.0, 256, 1.0, 0.0, 0.0, False, 0.0, ())
    planned = sorted(_planned(chance) for _ in range(chance.choice((1, 2, 3, 4))))
    last_s = max(at_s + lasts_s for at_s, _, _, lasts_s in planned)
    return Weather(
        seed=seed,
        turns=chance.randint(2, turns),
        prefill_groups=chance.choice((1, 2, 2)),
        decode_groups=chance.choice((1, 2, 2)),
        calm=False,
        frame_p=chance.choice((0.0, 0.02, 0.05)),
        store_wait_s=chance.choice((0.0, 0.0, 0.005, 0.03)),
        store_p=chance.choice((0.0, 0.0, 0.02)),
        damage_p=chance.choice((0.0, 0.5)),
        commit_max=chance.choice((1, 4, 256)),
        clock_rate=chance.choice((1.0, 1.0, 0.8, 1.25)),
        rare_p=chance.choice((0.0, 0.05, 0.2)),
        unruly_p=chance.choice((0.0, 0.05, 0.15)),
        lies=chance.random() < 0.15,
        heal_s=min(HEAL_LAST_S, max(HEAL_FIRST_S, last_s)),
        planned=tuple(planned),
    )


def _planned(chance: random.Random) -> tuple[float, Fault, int, float]:
    at_s = round(chance.uniform(0.3, HEAL_LAST_S - 1.0), 3)
    lasts_s = round(chance.choice((0.2, 0.6, 1.3, 2.5)) * chance.uniform(0.7, 1.3), 3)
    return at_s, chance.choice(PLANNED), chance.randrange(1 << 16), min(lasts_s, round(HEAL_LAST_S - at_s, 3))
