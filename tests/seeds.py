"""How many seeded histories are tried: some at every commit, more every night, or as many as a variable says."""

import os

import pytest


def list_seeds(every_commit: int = 500, every_night: int = 2000) -> list[range | pytest.ParameterSet]:
    """Ranges of seeds, as parameters of a test; HVDRUN_HISTORIES of them where that is set.

    One test follows as many histories as `every_night` says: as many as a busy machine follows well within a test's
    time limit.
    """
    asked = os.environ.get("HVDRUN_HISTORIES")
    if asked is None:
        night = range(every_commit, every_commit + every_night)
        return [range(every_commit), pytest.param(night, marks=pytest.mark.nightly)]
    count = int(asked)
    return [range(first, min(first + every_night, count)) for first in range(0, count, every_night)]
