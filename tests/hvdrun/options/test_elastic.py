"""The options of elastic jobs are in the one table, and say what they take."""

from hvdrun.options import BY_FLAG, OPTIONS, Group
from hvdrun.options.elastic import ELASTIC, LEASE


def test_they_are_in_the_table() -> None:
    assert set(ELASTIC) < set(OPTIONS)
    assert all(option.group is Group.ELASTIC and option.wanted for option in ELASTIC)
    assert BY_FLAG["--lease"] is LEASE


def test_the_lease_says_that_its_default_depends_on_the_job() -> None:
    assert LEASE.default is None
    assert "5s in elastic jobs, 30s in others" in LEASE.help
