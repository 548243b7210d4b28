"""The workers of one run of pytest, a warm cluster for each size and set of options, and the result of each test."""

import inspect
import pickle
import warnings
from bdb import BdbQuit
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from traceback import format_exception_only
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import pytest

from hvdrun.cluster.cluster import Answers, Cluster
from hvdrun.cluster.errors import UnsendableError
from hvdrun.cluster.pickling import read_error, read_result
from hvdrun.errors import HvdrunError
from hvdrun.testing.rank import RankFailedError, RankOutcome, RankReport, Style, can_travel, read_settings, run_test
from rendezvous.wire.tasks import find_unsendable


class DebuggedError(BdbQuit):
    """The test has failed, and what --pdb can do was done on rank 0; pytest opens no debugger for such an error."""


@dataclass(slots=True)
class GroupResult:
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
        raise make_error(self.first)

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


def make_error(report: RankReport) -> BaseException:
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


DEFAULT_SIZE = 2
_GRACE_SECONDS = 5.0  # a rank that waits for one that has failed is told; this is for ranks that compute
_DEBUGGING_SECONDS = 24 * 3600.0
# What these are for is pytest's own process.
_BOUND = frozenset(
    (
        "cache",
        "capfd",
        "capfdbinary",
        "caplog",
        "capsys",
        "capsysbinary",
        "capteesys",
        "doctest_namespace",
        "pytestconfig",
        "pytester",
        "record_property",
        "record_testsuite_property",
        "record_xml_attribute",
        "recwarn",
        "request",
        "subtests",
        "testdir",
    )
)
_MADE_ANEW = "monkeypatch"  # on each rank, where it is undone after the test


class RankedSession:
    """Runs tests on ranks, and has their workers.

    terminal: for the debugger; None where there is none.
    """

    def __init__(self, config: pytest.Config, terminal: str | None) -> None:
        option = config.option
        self._style = Style(
            read_style(option.tbstyle),
            option.showlocals,
            not option.fulltrace,
            terminal,
            option.usepdb,
            read_settings(config),
        )
        self._clusters: dict[str, Cluster] = {}

    def run(self, item: pytest.Function, marker: pytest.Mark) -> GroupResult:
        """Run a test on its ranks.

        Raises:
            pytest.fail.Exception: it cannot be sent there.
            HvdrunError: there can be no such workers.
        """
        cluster = self._find_cluster(marker)
        arguments = collect_arguments(item)
        is_debugged = self._style.uses_pdb and self._style.terminal is not None
        grace_seconds = _DEBUGGING_SECONDS if is_debugged else _GRACE_SECONDS
        complaint: str | None = None
        # By value, since the ranks would import it without pytest's explanations of assertions.
        cloudpickle.register_pickle_by_value(item.module)
        try:
            answers = cluster.call(
                run_test, (item.obj, arguments, self._style), {}, grace_seconds=grace_seconds, leaves_group=True
            )
        except UnsendableError as error:
            complaint = name_culprit(item, arguments) or str(error)
        finally:
            cloudpickle.unregister_pickle_by_value(item.module)
        if complaint is not None:
            pytest.fail(f"the test cannot run on other ranks: {complaint}", pytrace=False)
        return judge(answers, cluster.size)

    def close(self) -> None:
        """End all workers."""
        clusters, self._clusters = self._clusters, {}
        for cluster in clusters.values():
            cluster.close()

    def _find_cluster(self, marker: pytest.Mark) -> Cluster:
        if marker.args:
            pytest.fail("@pytest.mark.hvdrun takes keywords: write @pytest.mark.hvdrun(np=2).", pytrace=False)
        options = {"np": DEFAULT_SIZE, **marker.kwargs}
        key = repr(sorted(options.items()))
        if key not in self._clusters:
            self._clusters[key] = make_cluster(options)
        return self._clusters[key]


def make_cluster(options: dict[str, Any]) -> Cluster:
    """The workers that a marker asks for; they start with the first test.

    Raises:
        pytest.fail.Exception: there can be none.
    """
    try:
        return Cluster(**options)
    except (HvdrunError, TypeError) as error:
        sentence = f"@pytest.mark.hvdrun: {error}"
    pytest.fail(sentence, pytrace=False)


def read_style(name: str) -> str:
    """The style of `ExceptionInfo.getrepr` for pytest's --tb."""
    return {"auto": "long", "line": "short"}.get(name, name)


def collect_arguments(item: pytest.Function) -> dict[str, Any]:
    """The fixtures and parameters that a test asks for.

    Raises:
        pytest.fail.Exception: one of them means nothing on another rank.
    """
    names = [name for name in inspect.signature(item.obj).parameters if name in item.funcargs]
    bound = next((name for name in names if name in _BOUND), None)
    if bound is not None:
        pytest.fail(
            f"the fixture {bound!r} belongs to pytest's own process, and means nothing on the ranks of a test with "
            "@pytest.mark.hvdrun: leave it out, or use it in a test without the marker.",
            pytrace=False,
        )
    return {name: item.funcargs[name] for name in names if name != _MADE_ANEW}


def name_culprit(item: pytest.Function, arguments: dict[str, Any]) -> str | None:
    """One sentence for the first fixture that cannot be sent, or for what in the test cannot."""
    for name, value in arguments.items():
        if not can_travel(value):
            return (
                f"{find_unsendable(f'the fixture {name!r}', value, can_travel)}. "
                "Make it inside the test, or give the test what it is made from."
            )
    if not can_travel(item.obj):
        return f"{find_unsendable(item.name, item.obj, can_travel)}. Make it inside the test."
    return None


def judge(answers: Answers, size: int) -> GroupResult:
    """What has come back of a test, as one result; the answers can be read once."""
    reports: list[RankReport] = []
    causes: list[RankReport] = []
    error: BaseException | None = None
    for outcome in answers.delivered:
        with closing(outcome.body):
            found = read_error(outcome) if outcome.failed else read_result(outcome)
        if isinstance(found, RankFailedError):
            found = found.report
        if not isinstance(found, RankReport):
            error = error or found  # it could not even begin
            continue
        reports.append(found)
        if not outcome.follows_another:
            causes.append(found)
    first = decide(causes, size)
    if first is None or first.outcome is not RankOutcome.FAILED:
        error = error or answers.explain_end()  # a worker that has died comes before what follows from that
    if error is None and first is None:
        first = decide(reports, size)
    return GroupResult(reports, first, error)
