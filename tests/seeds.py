"""How many seeded histories are tried: some at every commit, more every night, or as many as a variable says."""

import os

import pytest

_EVERY_COMMIT = 500
_EVERY_NIGHT = 2000
_AT_ONCE = 2000  # in one test, well within its time limit on a busy machine


def list_seeds(every_commit: int = _EVERY_COMMIT) -> list[range | pytest.ParameterSet]:
    """Ranges of seeds, as parameters of a test; HVDRUN_HISTORIES of them where that is set."""
    asked = os.environ.get("HVDRUN_HISTORIES")
    if asked is None:
        night = range(every_commit, every_commit + _EVERY_NIGHT)
        return [range(every_commit), pytest.param(night, marks=pytest.mark.nightly)]
    count = int(asked)
    return [range(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE)]
