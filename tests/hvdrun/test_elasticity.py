"""The bounds of an elastic job: what contradicts itself, or the rest of the job, is refused."""

import pytest

from hvdrun.elasticity import Elasticity
from hvdrun.errors import UsageError
from rendezvous.core.model import Recovery


@pytest.mark.parametrize(
    ("elasticity", "option"),
    [
        (Elasticity(0), "--min-np 0"),
        (Elasticity(1, timeout_seconds=float("inf")), "--elastic-timeout"),
        (Elasticity(1, cooldown_seconds=(0.5, 9.0)), "--blacklist-cooldown-range 0.5 9"),
        (Elasticity(1, cooldown_seconds=(1.0, 3601.0)), "--blacklist-cooldown-range 1 3601"),
    ],
)
def test_a_contradiction_is_refused(elasticity: Elasticity, option: str) -> None:
    """Those that a command line can have are in test_elastic_request.py."""
    with pytest.raises(UsageError, match=option):
        elasticity.check(2, 5.0)


def test_the_recovery_policy_has_the_limits_of_the_job() -> None:
    elasticity = Elasticity(1, None, None, 1, 7.0, 0, (2.0, 3.0), slot_failures=9, slot_cooldown_seconds=8.0)
    assert elasticity.recovery() == Recovery(0, 7.0, (2.0, 3.0), failures_per_slot=9, forgiveness_seconds=8.0)
