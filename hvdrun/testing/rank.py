"""What each rank does with a test: it calls the test, and describes what has become of it. Runs in the workers."""

import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from inspect import signature
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace, TracebackType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import pytest

from hvdrun.testing.debugger import debug, stops_at_breakpoints


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.relpath(self.file)}:{self.line}"


class Call:
    """The call of a test function.

    place: where it returned; None while it has not, or where it is no Python function.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        innermost = inspect.unwrap(function)
        self._code: CodeType | None = getattr(innermost, "__code__", None)
        self.place: Place | None = None

    def run(self, arguments: Mapping[str, Any]) -> None:
        """Call it."""
        frames: list[FrameType] = []
        with self._catch_frame(frames):
            self._function(**arguments)
        if frames:
            self.place = Place(frames[0].f_code.co_filename, frames[0].f_lineno)

    def find_place(self, error: BaseException) -> Place | None:
        """The innermost line of the test's own file that an exception has passed, or the innermost of all."""
        steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        own = [step for step in steps if self._code is not None and step[0] == self._code.co_filename]
        found = (own or steps)[-1:]
        return Place(*found[0]) if found else None

    @contextmanager
    def _catch_frame(self, frames: list[FrameType]) -> Iterator[None]:
        """Put the function's frame into the list: it still knows its line after it has returned.

        The profiler's hook is used for that one call, and not beyond it: it would slow the test down.
        """
        former = sys.getprofile()

        def notice(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is self._code:
                frames.append(frame)
                sys.setprofile(former)

        sys.setprofile(notice)
        try:
            yield
        finally:
            sys.setprofile(former)


_SETTINGS = ("truncation_limit_lines", "truncation_limit_chars")


def read_settings(config: pytest.Config) -> tuple[str, ...]:
    """What pytest's options and its file say of explanations, as `-o` takes it."""
    settings = [f"verbosity_assertions={config.get_verbosity('assertions')}"]
    for name in _SETTINGS:
        try:
            value = config.getini(name)
        except ValueError:  # an older pytest
            continue
        if value is not None:
            settings.append(f"{name}={value}")
    return tuple(settings)


@contextmanager
def explains_assertions(settings: tuple[str, ...]) -> Iterator[None]:
    """Within it, assertions that fail are explained.

    pytest's own plugin for that does it around each test; it wants to know the configuration, and no more of the test.
    """
    config = make_config(settings)
    plugin: Any = config.pluginmanager.get_plugin("assertion")
    around = plugin.pytest_runtest_protocol(SimpleNamespace(ihook=config.hook, config=config))
    next(around)
    try:
        yield
    finally:
        around.close()


@cache
def make_config(settings: tuple[str, ...]) -> pytest.Config:
    """A configuration of pytest for this process: no file, conftest or plugin but pytest's own takes part."""
    overrides = [word for setting in settings for word in ("-o", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_PLUGINS", raising=False)
        words = ["-s", "--assert=plain", "--noconftest", "-c", os.devnull, *overrides]
        config = pytest.Config.fromdictargs({}, words)
    config.option.assertmode = "rewrite"  # as the test's own module; nothing is rewritten here
    return config


class RankOutcome(StrEnum):
    """What has become of a test on a rank."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    EXITED = "exited"  # pytest.exit(), or the debugger's q: it ends the run


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning that the test has caused; equal on two ranks when it is the same one."""

    message: str
    category: type[Warning]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Style:
    """What pytest's options say.

    traceback: --tb. shows_locals: --showlocals. is_short: without --full-trace.
    terminal: for the debugger; None where there is none. uses_pdb: --pdb.
    explanations: of failed assertions, see `read_settings`.
    """

    traceback: Any
    shows_locals: bool
    is_short: bool = True
    terminal: str | None = None
    uses_pdb: bool = False
    explanations: tuple[str, ...] = ()


@dataclass(slots=True)
class RankReport:
    """What has become of a test on one rank.

    summary: the exception in a line; "" without one.
    place: where the rank left the test.
    shown: the exception as pytest shows it. error: itself, in bytes; None where it cannot be sent.
    """

    rank: int
    outcome: RankOutcome = RankOutcome.PASSED
    summary: str = ""
    place: Place | None = None
    shown: Any = None
    error: bytes | None = None
    warned: list[Warned] = field(default_factory=list)
    was_debugged: bool = False


class RankFailedError(Exception):
    """Carries the report of a rank on which the test did not pass; as an exception, so that the others are told."""

    def __init__(self, report: RankReport) -> None:
        super().__init__(report)
        self.report = report


_OUTCOMES: dict[type[BaseException], RankOutcome] = {
    pytest.skip.Exception: RankOutcome.SKIPPED,
    pytest.xfail.Exception: RankOutcome.XFAILED,
    pytest.exit.Exception: RankOutcome.EXITED,
}
_TOLD_BY_TEXT = frozenset({RankOutcome.SKIPPED, RankOutcome.XFAILED, RankOutcome.EXITED})
_ROOT = Path(__file__).resolve().parents[2]
_OWN_FOLDERS = tuple(f"{_ROOT / name}{os.sep}" for name in ("hvdrun", "worker_runtime", "rendezvous"))


def run_test(function: Callable[..., object], arguments: Mapping[str, Any], style: Style) -> RankReport:
    """Call the test.

    Raises:
        RankFailedError: it did not pass.
    """
    report = RankReport(int(os.environ["HOROVOD_RANK"]))
    call = Call(function)
    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        own = {"monkeypatch": patch} if "monkeypatch" in signature(function).parameters else {}
        try:
            with (
                explains_assertions(style.explanations),
                stops_at_breakpoints(style.terminal, report.rank, patch),
            ):
                call.run({**arguments, **own})
            report.place = call.place
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - reported to pytest
            describe(report, error, call, style)
        report.warned = [Warned(str(each.message), each.category, each.filename, each.lineno) for each in caught]
    if report.outcome in {RankOutcome.FAILED, RankOutcome.EXITED}:
        raise RankFailedError(report)
    return report


def describe(report: RankReport, error: BaseException, call: Call, style: Style) -> None:
    """Write into the report what a test has raised; with --pdb the user looks at it."""
    report.outcome = _OUTCOMES.get(type(error), RankOutcome.FAILED)
    report.place = call.find_place(error)
    info = pytest.ExceptionInfo.from_exception(error)
    report.summary = str(error) if report.outcome in _TOLD_BY_TEXT else info.exconly(tryshort=True)
    shown = info.getrepr(
        style=style.traceback, showlocals=style.shows_locals, tbfilter=leave_out_own if style.is_short else False
    )
    report.shown = shown if can_travel(shown) else str(shown)
    report.error = pack_error(error)
    if style.uses_pdb and report.outcome is RankOutcome.FAILED:
        report.was_debugged = True
        refusal = look(report, style.terminal, f"{shown}", info.tb)
        if refusal is not None:
            first, newline, rest = report.summary.partition("\n")
            report.summary = f"{first} ({refusal}){newline}{rest}"


def look(report: RankReport, terminal: str | None, shown: str, step: TracebackType) -> str | None:
    """Let the user of --pdb look at a failure; why that cannot be, half a sentence."""
    if report.rank != 0:
        return "--pdb stops on rank 0 alone"
    if terminal is None:
        return "--pdb needs the terminal of pytest, and there is none"
    try:
        if debug(terminal, f"{shown}\n>>> the test has failed on rank 0: you are in that process", step):
            report.outcome = RankOutcome.EXITED
    except OSError as error:
        return f"--pdb: rank 0 cannot use the terminal {terminal}: {error.strerror}"
    return None


def leave_out_own(info: pytest.ExceptionInfo[BaseException]) -> Any:  # noqa: ANN401 - pytest does not export its type
    """The traceback without the frames of this project, except where there are no others."""
    others = info.traceback.filter(lambda entry: not (entry.ishidden(info) or str(entry.path).startswith(_OWN_FOLDERS)))
    return others or info.traceback


def can_travel(value: object) -> bool:
    """Whether it can be sent."""
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return False
    return True


def pack_error(error: BaseException) -> bytes | None:
    """The bytes of an exception; None where it cannot be sent, or would end the program that reads it."""
    if not isinstance(error, Exception) or not can_travel(error):
        return None
    packed: bytes = cloudpickle.dumps(error)
    return packed
