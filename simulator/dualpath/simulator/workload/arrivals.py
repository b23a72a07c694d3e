"""When sessions come: all at once (offline), or as a Poisson process (online; paper §8)."""

import math

import numpy as np

from dualpath.model.errors import Rejected


def offline(count: int) -> list[float]:
    """All at the start."""
    return [0.0] * count


def poisson(count: int, *, sessions_per_s: float, seed: int) -> list[float]:
    """Instants of `count` arrivals. One seed gives the same arrivals at any rate, only closer or farther apart.

    raises  Rejected for a rate that is not above 0
    """
    if not 0 < sessions_per_s < math.inf:
        raise Rejected(f"sessions per second are {sessions_per_s}, wanted more than 0", field="aps")
    gaps = np.random.default_rng((seed, 1)).exponential(1.0, count)
    return [float(at) for at in np.cumsum(gaps) / sessions_per_s]


def sessions_until(until_s: float, sessions_per_s: float) -> int:
    """How many to draw so that arrivals surely go on until `until_s`: the mean and five standard deviations."""
    mean = until_s * sessions_per_s
    return math.ceil(mean + 5 * math.sqrt(mean) + 5)
