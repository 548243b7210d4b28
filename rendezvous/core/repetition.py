"""Repetition: trouble at the same place, again and again, is no bad luck, and is not retried for ever.

The same trouble need not be told in the same words: ports, numbers of generations and ranks differ. And what the
members tell may depend on who is the first to notice: so other trouble at the same place counts as well, with more
patience. So it is with hosts that do not reach each other, whose workers can never be connected.
"""

from collections.abc import Collection
from dataclasses import dataclass

from rendezvous.core.model import Worker
from rendezvous.core.reports import CompletedOperation, PendingOperation, Report

MOST_REPETITIONS = 3  # of the same trouble, in generations that follow one another
MOST_TROUBLES = 6  # of any trouble
STEPS_OF_PROGRESS = 5


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often the same members have been in the same trouble without getting any further.

    trouble: of the first rank that told of some.
    progress: the highest number of a commit round that anybody has asked for. They are counted anew after a restore:
        the same failure at the same place then shows the same number.
    count: of the generations, and troubles: of those with any trouble.
    commits: how often the state was committed.
    """

    trouble: str = ""
    members: tuple[Worker, ...] = ()
    progress: int = 0
    count: int = 0
    troubles: int = 0
    commits: int = 0

    @property
    def hopelessness(self) -> str | None:
        """Why it would happen again, in one sentence without a full stop; None while it may not."""
        if self.count >= MOST_REPETITIONS:
            return f"{self.trouble}; the same has happened {self.count} times in a row, with no step in between"
        if self.troubles >= MOST_TROUBLES:
            return f"{self.trouble}; it was the last of {self.troubles} troubles in a row, with no step in between"
        return None

    def shows_progress(self, reports: Collection[Report]) -> bool:
        """The members of the generation whose survivors have reported so have committed some steps.

        A program that fails as soon as it trains may have made a step or two, and have committed its state before.
        """
        steps = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        return steps > STEPS_OF_PROGRESS or commits > self.commits + 1

    def note(self, members: tuple[Worker, ...], reports: Collection[Report]) -> "Repetition":
        """What it is after one more generation, whose survivors have reported so.

        They have got further when they have come beyond the last trouble, or have committed their state after a step,
        from which they go on after a restore. (Who is alone makes steps without a round.)
        """
        trouble = next((report.trouble for report in reports if report.trouble), "")
        progress = max((_find_progress(report) for report in reports), default=0)
        commits = max((report.commits for report in reports), default=0)
        if not trouble or len(reports) < len(members):
            return Repetition(trouble, members, progress, commits=commits)
        has_committed = commits > self.commits and (progress > 0 or len(members) == 1)
        is_stuck = members == self.members and progress <= self.progress and not has_committed
        is_same = is_stuck and _blur(trouble) == _blur(self.trouble)
        count, troubles = self.count + 1 if is_same else 1, self.troubles + 1 if is_stuck else 1
        return Repetition(trouble, members, progress, count, troubles, commits)


def _blur(trouble: str) -> str:
    """It without its numbers."""
    return "".join(letter for letter in trouble if not letter.isdigit())


def _find_progress(report: Report) -> int:
    asked: tuple[PendingOperation | CompletedOperation, ...] = (*report.pending, *report.completed)
    return max((operation.number for operation in asked), default=0)
