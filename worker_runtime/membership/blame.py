"""Which other part of the job made the program of this process fail, read from the error that has ended it.

The sequencer, or the connection to it, has written the text of such an error.
"""

import re

from worker_runtime.errors import (
    DeadlockError,
    NotFiniteError,
    OperationFailedError,
    OperationRefusedError,
    ReplicasDifferError,
)
from worker_runtime.rendezvous import Blame

_RANKS = re.compile(r"\branks? (\d+(?:, \d+)*)")
_DEPARTED = re.compile(r"(?P<who>.+?), and .+ needs (?:it|them)(?=\.)")
_STALLED = re.compile(r".+ waited for (?P<who>ranks? \d[\d, ]*).* the stall limit(?=\.)")
_CUT_OFF = re.compile(r"(?P<who>rank \d+) was (?:cut off|lost): .+")
_NOT_FINITE = re.compile(r"(?P<who>rank \d+)'s gradient of .+")
_DEADLOCK = re.compile(
    r"Mismatched operations: (?P<reason>every rank waits for another: "
    r"(?P<one>ranks? \d[\d, .]*) waits? for (?P<a>.+?); "
    r"(?P<other>ranks? \d[\d, .]*) waits? for (?P<b>.+?))\. Each operation must be called"
)
_NO_SEQUENCER = re.compile(r"(?P<who>)the sequencer has ended")


def find_blame(error: BaseException | None) -> Blame | None:
    """What another part of the job has done to this program; None if the error does not tell, or is the program's own.

    Args:
        error: the uncaught exception that has ended the program.
    """
    text = str(error).partition("\n")[0]
    if isinstance(error, NotFiniteError):
        return _read(text, "", _NOT_FINITE)
    if isinstance(error, ReplicasDifferError) and error.odd_ranks:
        return Blame(text, error.odd_ranks)
    if isinstance(error, DeadlockError):
        return _find_fewest(text)
    if isinstance(error, OperationRefusedError):
        return _read(text, "", _DEPARTED)
    if not isinstance(error, OperationFailedError):
        return None
    before, _, cause = text.partition(f" failed on rank {error.rank}: ")
    return _read(cause if before else text, f"rank {error.rank}", _STALLED, _CUT_OFF, _NO_SEQUENCER)


def _read(text: str, own: str, *patterns: re.Pattern[str]) -> Blame | None:
    found = next((match for pattern in patterns if (match := pattern.match(text))), None)
    if found is None:
        return None
    who = found["who"]
    ranks: set[int] = set()
    if who != own:
        ranks = {int(rank) for run in _RANKS.findall(who) for rank in run.split(", ")}
    return Blame(found[0], tuple(sorted(ranks)))


def _find_fewest(text: str) -> Blame | None:
    """Of two groups that wait for each other, the smaller one is not where most ranks are."""
    found = _DEADLOCK.match(text)
    if found is None or any("; " in what or what == "all others to join" for what in found.group("a", "b")):
        return None
    one, other = (_read_ranks(found[name]) for name in ("one", "other"))
    is_more, is_also_more = ("..." in found[name] for name in ("one", "other"))  # than the text names
    if (is_more, len(one)) == (is_also_more, len(other)):
        return None
    fewest = min((is_more, len(one), one), (is_also_more, len(other), other))[2]
    return Blame(found["reason"], tuple(sorted(fewest)))


def _read_ranks(who: str) -> list[int]:
    return [int(rank) for rank in re.findall(r"\d+", who)]
