"""Policy limits: impossible ones are rejected with what was found and what was wanted."""

import math

import pytest

from dualpath.model.errors import Rejected
from dualpath.scheduler.policy.snapshot import PolicyLimits


@pytest.mark.parametrize(
    ("field", "found", "wanted"),
    [
        ("alpha_tokens", -1, "at least 0"),
        ("beta_tokens", -1, "at least 0"),
        ("high_mark_factor", 0.99, "between 1 and 10"),
        ("high_mark_factor", 10.5, "between 1 and 10"),
        ("high_mark_factor", math.nan, "between 1 and 10"),
        ("high_mark_factor", math.inf, "between 1 and 10"),
    ],
)
def test_impossible_limits_are_rejected_with_found_and_wanted(field: str, found: float, wanted: str) -> None:
    with pytest.raises(Rejected, match=f"{field} is {found}, wanted {wanted}") as rejected:
        PolicyLimits(**{field: found})  # type: ignore[arg-type]

    assert rejected.value.field == field
    assert rejected.value.reason == "POLICY_LIMITS"


def test_limits_of_zero_are_possible() -> None:
    limits = PolicyLimits(alpha_tokens=0, beta_tokens=0, high_mark_factor=1.0)

    assert (limits.alpha_tokens, limits.beta_tokens) == (0, 0)
