"""Repetition: the same trouble at the same place, again and again, is no bad luck, and is not retried for ever."""

from collections.abc import Collection
from dataclasses import dataclass

from rendezvous.core.model import Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report

MOST_REPETITIONS = 3  # of the same trouble, in generations that follow one another


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often the same members have been in the same trouble without getting any further.

    trouble: of the first rank that told of some.
    progress: the highest number of a commit round that anybody has asked for.
    count: of the generations.
    """

    trouble: str = ""
    members: tuple[Worker, ...] = ()
    progress: int = 0
    count: int = 0

    @property
    def is_hopeless(self) -> bool:
        """It would happen again."""
        return self.count >= MOST_REPETITIONS

    def note(self, members: tuple[Worker, ...], reports: Collection[Report]) -> "Repetition":
        """What it is after one more generation, whose survivors have reported so.

        Commit rounds are counted anew after a restore: the same failure at the same place then shows the same number.
        """
        trouble = next((report.trouble for report in reports if report.trouble), "")
        progress = max((_find_progress(report) for report in reports), default=0)
        is_same = (trouble, members) == (self.trouble, self.members) and progress <= self.progress
        count = self.count + 1 if is_same else 1
        return Repetition(trouble, members, progress, count if trouble and len(reports) == len(members) else 0)


def _find_progress(report: Report) -> int:
    asked: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
    return max((operation.number for operation in asked), default=0)
