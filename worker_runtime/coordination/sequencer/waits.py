"""What is known of ranks that wait for others: written for hvdrun, which adds where the others are, or for a user.

`rendezvous/wire/waits.py` reads what is written for hvdrun. Under another launcher a waiting rank prints a sentence.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.refusals import name_operation, name_ranks

MOST_OPERATIONS = 5  # in one report; all buckets of a step wait for the same ranks


@dataclass(frozen=True, slots=True)
class Wait:
    """A pending operation.

    since: the time since when a rank waits for it.
    still_since: the time since when nothing of its process set has been released, either; of a join, nothing at all.
    """

    pending: PendingSummary
    since: float
    still_since: float

    @property
    def key(self) -> tuple[int, str]:
        """The process set and the name of the operation."""
        return self.pending.request.process_set, self.pending.request.name


def encode_waits(
    generation: int, waits: Sequence[Wait], blocked: Iterable[int], now: float, *, is_hang: bool = False
) -> bytes:
    """A line for hvdrun; without waits it says that a wait has ended.

    Args:
        generation: its number.
        waits: what has waited long, the oldest first.
        blocked: the ranks that wait themselves.
        now: the present time.
        is_hang: nothing has happened for as long as `--hang-timeout` says.
    """
    fields = {
        "waits": generation,
        "operations": [
            [
                name_operation(each.pending.request),
                round(now - each.still_since, 3),
                _encode_ranks(each.pending.asked),
                _encode_ranks(each.pending.missing),
            ]
            for each in waits[:MOST_OPERATIONS]
        ],
        "blocked": _encode_ranks(blocked),
        "is_hang": is_hang,
    }
    return json.dumps(fields).encode() + b"\n"


def describe_waits(waits: Sequence[Wait], blocked: Iterable[int], now: float) -> str:
    """A sentence for a user; names the ranks first that wait for nobody."""
    missing = {rank for each in waits for rank in each.pending.missing}
    named = missing.difference(blocked) or missing
    wait = next(each for each in waits if named.intersection(each.pending.missing))
    seconds = f"for {now - wait.still_since:.3g} s"
    waiting = {rank for each in waits for rank in each.pending.asked} - named
    if not waiting:
        lacks = [
            f"{name_operation(each.pending.request)} for {name_ranks(each.pending.missing)}"
            for each in waits[:MOST_OPERATIONS]
        ]
        return f"the ranks have waited for each other {seconds}: {', '.join(lacks)}"
    have = "has" if len(named) == 1 else "have"
    others = "1 other has" if len(waiting) == 1 else f"{len(waiting)} others have"
    called = name_operation(wait.pending.request)
    return f"{name_ranks(named)} {have} not called {called}; {others} waited there {seconds}"


def _encode_ranks(ranks: Iterable[int]) -> list[list[int]]:
    """Ranks in order as runs: there may be thousands."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs
