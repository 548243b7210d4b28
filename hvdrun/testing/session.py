"""The workers of one run of pytest, a warm cluster for each set of options, and the result of each test."""

import inspect
import pickle
import warnings
from bdb import BdbQuit
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from traceback import format_exception_only
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import pytest

from hvdrun.cluster.cluster import Answers, Cluster
from hvdrun.cluster.errors import UnsendableError
from hvdrun.cluster.keywords import list_keywords
from hvdrun.cluster.pickling import read_error, read_result
from hvdrun.errors import HvdrunError
from hvdrun.testing.rank import RankFailedError, RankOutcome, RankReport, Style, can_be_pickled, read_settings, run_test
from rendezvous.wire.tasks import find_unsendable


class DebuggedError(BdbQuit):
    """The test has failed, and --pdb has stopped on rank 0; pytest opens no other debugger for this error."""


@dataclass(slots=True)
class GroupResult:
    """The result of a test for pytest.

    reports: the reports of the ranks, in the order in which they came.
    first: the report that decides; None if the test has passed.
    error: raised instead, as when a worker has died.
    """

    reports: Sequence[RankReport]
    first: RankReport | None
    error: BaseException | None = None

    def announce(self) -> None:
        """Issue the test's warnings, and raise its exception.

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
        """Show the ranks' reports in pytest's report."""
        places = "\n".join(
            f"rank {each.rank} {describe_place(each)}" for each in sorted(self.reports, key=lambda each: each.rank)
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


def describe_place(report: RankReport) -> str:
    """What a rank did, and where."""
    where = f" at {report.place}" if report.place is not None else ""
    match report.outcome:
        case RankOutcome.PASSED:
            return f"returned from the test{where}"
        case RankOutcome.SKIPPED:
            return f"skipped the test{where}"
        case _:
            first, _, _ = report.summary.partition("\n")  # an assertion's differences follow
            return f"failed{where}: {first}"


def decide(reports: Sequence[RankReport], size: int) -> RankReport | None:
    """The report that decides; None if the test has passed.

    A test is skipped if all its ranks skip it: a test for rank 0 may skip the others.
    """
    for outcome in (RankOutcome.EXITED, RankOutcome.FAILED, RankOutcome.XFAILED):
        found = next((report for report in reports if report.outcome is outcome), None)
        if found is not None:
            return found
    skipped = [report for report in reports if report.outcome is RankOutcome.SKIPPED]
    if len(skipped) == size:
        return skipped[0]
    return None


def make_error(report: RankReport) -> BaseException:
    """The exception of a rank, or one that describes it."""
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
_GRACE_SECONDS = 5.0  # ranks that wait for a failed one are notified; this is for ranks that compute
_DEBUGGING_SECONDS = 24 * 3600.0
# The fixtures that work in pytest's own process only.
_LOCAL_FIXTURES = frozenset(
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
_MONKEYPATCH = "monkeypatch"  # each rank has its own, and undoes it after the test


class RankedSession:
    """Runs tests on ranks, and owns their workers.

    Args:
        config: pytest's.
        terminal: for the debugger; None if there is none.
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
            pytest.fail.Exception: the test cannot be sent to the ranks, or the marker is wrong.
            HvdrunError: the workers cannot be started.
        """
        cluster = self._find_cluster(marker)
        arguments = collect_arguments(item)
        is_debugged = self._style.uses_pdb and self._style.terminal is not None
        grace_seconds = _GRACE_SECONDS
        if is_debugged:
            grace_seconds = _DEBUGGING_SECONDS

        reason: str | None = None
        # By value: a module that the ranks import has no explanations of assertions.
        cloudpickle.register_pickle_by_value(item.module)
        try:
            answers = cluster.call(
                run_test, (item.obj, arguments, self._style), {}, grace_seconds=grace_seconds, leaves_group=True
            )
        except UnsendableError as error:
            reason = explain_unsendable(item, arguments) or str(error)
        finally:
            cloudpickle.unregister_pickle_by_value(item.module)

        if reason is not None:
            pytest.fail(f"the test cannot run on other ranks: {reason}", pytrace=False)
        return make_result(answers, cluster.size)

    def close(self) -> None:
        """End all workers."""
        clusters, self._clusters = self._clusters, {}
        for cluster in clusters.values():
            cluster.close()

    def _find_cluster(self, marker: pytest.Mark) -> Cluster:
        if marker.args:
            pytest.fail("@pytest.mark.hvdrun takes keywords: write @pytest.mark.hvdrun(np=2).", pytrace=False)
        key = repr(sorted(marker.kwargs.items()))
        if key not in self._clusters:
            self._clusters[key] = make_cluster(marker.kwargs)
        return self._clusters[key]


def make_cluster(options: Mapping[str, Any]) -> Cluster:
    """The workers of a marker, DEFAULT_SIZE unless it names a number; they start with the first test.

    Raises:
        pytest.fail.Exception: the marker is wrong.
    """
    known, usual = list_keywords(), dict[str, Any](np=DEFAULT_SIZE)
    has_size = any(name in known and known[name] is known["np"] for name in options)
    try:
        if has_size:
            return Cluster(**options)
        return Cluster(**usual, **options)
    except (HvdrunError, TypeError) as error:
        sentence = f"@pytest.mark.hvdrun: {error}"
    pytest.fail(sentence, pytrace=False)


def read_style(name: str) -> str:
    """The style of `ExceptionInfo.getrepr` for pytest's --tb."""
    return {"auto": "long", "line": "short"}.get(name, name)


def collect_arguments(item: pytest.Function) -> dict[str, Any]:
    """The fixtures and parameters of a test.

    Message: the fixture NAME works in pytest's own process, and not on the ranks of a test with @pytest.mark.hvdrun
    Cause: A test with the marker takes `capsys`, `request` or another fixture that belongs to pytest's process.
    Remedy: Remove the fixture, or use it in a test without the marker.

    Raises:
        pytest.fail.Exception: one of them works in pytest's own process only.
    """
    names = [name for name in inspect.signature(item.obj).parameters if name in item.funcargs]
    local = next((name for name in names if name in _LOCAL_FIXTURES), None)
    if local is not None:
        pytest.fail(
            f"the fixture {local!r} works in pytest's own process, and not on the ranks of a test with "
            "@pytest.mark.hvdrun: remove it, or use it in a test without the marker.",
            pytrace=False,
        )
    return {name: item.funcargs[name] for name in names if name != _MONKEYPATCH}


def explain_unsendable(item: pytest.Function, arguments: dict[str, Any]) -> str | None:
    """The message for the first fixture, or part of the test, that cannot be pickled; None if all can be."""
    for name, value in arguments.items():
        if not can_be_pickled(value):
            return (
                f"{find_unsendable(f'the fixture {name!r}', value, can_be_pickled)}. "
                "Create it inside the test, or pass what it is created from."
            )
    if not can_be_pickled(item.obj):
        return f"{find_unsendable(item.name, item.obj, can_be_pickled)}. Create it inside the test."
    return None


def make_result(answers: Answers, size: int) -> GroupResult:
    """The result of a test from its answers, which can be read once."""
    reports: list[RankReport] = []
    causes: list[RankReport] = []
    error: BaseException | None = None

    with closing(answers):
        for outcome in answers.delivered:
            found = read_error(outcome) if outcome.failed else read_result(outcome)
            if isinstance(found, RankFailedError):
                found = found.report
            if not isinstance(found, RankReport):
                error = error or found  # the test could not begin on this rank
                continue
            reports.append(found)
            if not outcome.follows_another:
                causes.append(found)

    first = decide(causes, size)
    if first is None or first.outcome is not RankOutcome.FAILED:
        error = error or answers.explain_end()  # a dead worker decides over the failures that follow from it
    if error is None and first is None:
        first = decide(reports, size)
    return GroupResult(reports, first, error)
