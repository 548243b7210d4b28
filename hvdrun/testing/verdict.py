"""One result of what has become of a test on all ranks: the first cause, and where each rank was."""

import pickle
import warnings
from bdb import BdbQuit
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import format_exception_only

import pytest

from hvdrun.testing.rank import RankOutcome, RankReport


class DebuggedError(BdbQuit):
    """The test has failed, and what --pdb can do was done on rank 0; pytest opens no debugger for such an error."""


@dataclass(slots=True)
class Verdict:
    """What pytest is told.

    reports: of the ranks, in the order in which they came.
    first: the one that decides.
    error: what is raised in its stead where there is no report to decide, as when a worker has died.
    """

    reports: Sequence[RankReport]
    first: RankReport | None
    error: BaseException | None = None

    def announce(self) -> None:
        """Raise what the test has raised, and warn of what it has warned of.

        Raises:
            BaseException: the test did not pass.
        """
        for warned in dict.fromkeys(warned for report in self.reports for warned in report.warned):
            try:
                warnings.warn_explicit(warned.message, warned.category, warned.file, warned.line)
            except Warning as error:
                self.error = self.error or error
        if self.error is not None:
            raise self.error
        if self.first is None:
            return
        raise read_error(self.first)

    def complete(self, report: pytest.TestReport) -> None:
        """Show in pytest's report what the ranks have seen."""
        places = "\n".join(
            f"rank {each.rank} {tell(each)}" for each in sorted(self.reports, key=lambda each: each.rank)
        )
        if self.error is not None:
            report.longrepr = "".join(format_exception_only(self.error)) + places
        elif self.first is None:
            return
        elif report.skipped and not hasattr(report, "wasxfail"):
            if self.first.place is not None:
                report.longrepr = (self.first.place.file, self.first.place.line, self.first.summary)
        else:
            shown = self.first.shown
            if isinstance(shown, str):
                shown = f"{shown}\n{places}"
            else:
                shown.addsection("ranks", places)
            report.longrepr = shown


def tell(report: RankReport) -> str:
    """Where a rank was, in words."""
    where = f" at {report.place}" if report.place is not None else ""
    match report.outcome:
        case RankOutcome.PASSED:
            return f"returned from the test{where}"
        case RankOutcome.SKIPPED:
            return f"skipped the test{where}"
        case _:
            first, _, _ = report.summary.partition("\n")  # an assertion's differences come after that
            return f"failed{where}: {first}"


def decide(reports: Sequence[RankReport], size: int) -> RankReport | None:
    """The report that decides over the test; None where it has passed.

    A test is skipped when all its ranks skip it: one that looks at rank 0 alone may skip the others.
    """
    for outcome in (RankOutcome.EXITED, RankOutcome.FAILED, RankOutcome.XFAILED):
        found = next((report for report in reports if report.outcome is outcome), None)
        if found is not None:
            return found
    skipped = [report for report in reports if report.outcome is RankOutcome.SKIPPED]
    return skipped[0] if len(skipped) == size else None


def read_error(report: RankReport) -> BaseException:
    """What a rank has raised, or what tells of it."""
    match report.outcome:
        case RankOutcome.SKIPPED:
            return pytest.skip.Exception(report.summary)
        case RankOutcome.XFAILED:
            return pytest.xfail.Exception(report.summary)
        case RankOutcome.EXITED:
            return pytest.exit.Exception("Quitting debugger" if report.was_debugged else report.summary)
    if report.was_debugged:
        return DebuggedError(report.summary)
    if report.error is not None:
        error: BaseException = pickle.loads(report.error)  # noqa: S301 - from a worker that has proved who it is
        return error
    return pytest.fail.Exception(report.summary, pytrace=False)
