"""What all tests share: one thread per BLAS call, Hypothesis profiles, a free port."""

import os

# Before numpy is imported anywhere: BLAS threads of many small processes only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

import support

# gate: the same examples on every machine, so a red run is red everywhere.
# random: new examples on each run, for nightly.
# No deadline per example: a busy machine is not a bug; pytest-timeout still ends what hangs.
settings.register_profile("gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "random", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("DUALPATH_HYPOTHESIS_PROFILE", "gate"))


@pytest.fixture
def free_port() -> int:
    """A TCP port on loopback that nobody listens on; for more than one call support.find_free_port."""
    return support.find_free_port()
