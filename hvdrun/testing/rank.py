"""The part that runs in the workers: each rank calls the test, and reports the outcome."""

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
from io import BytesIO
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace, TracebackType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import pytest

from hvdrun.cluster.pickling import NamingPickler
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

    Args:
        function: the test function.

    place: where it returned; None before that, and for a function without Python code.
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
        """The innermost line of an exception's traceback in the test's file, else the innermost of all."""
        steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        own = [step for step in steps if self._code is not None and step[0] == self._code.co_filename]
        found = (own or steps)[-1:]
        if found:
            return Place(*found[0])
        return None

    @contextmanager
    def _catch_frame(self, frames: list[FrameType]) -> Iterator[None]:
        """Put the function's frame into the list: the frame has its line even after the return.

        The profiler's hook is removed at that call: longer, it would slow the test down.
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
    """The settings of pytest for explanations of assertions, in the form of `-o`."""
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
    """In its block, assertions that fail are explained.

    pytest's plugin does this around each test. Of the test it needs the configuration alone.
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
    """A configuration of pytest for this process, without files, conftests and plugins other than pytest's own."""
    overrides = [word for setting in settings for word in ("-o", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.delenv("PYTEST_PLUGINS", raising=False)
        words = ["-s", "--assert=plain", "--noconftest", "-c", os.devnull, *overrides]
        config = pytest.Config.fromdictargs({}, words)
    config.option.assertmode = "rewrite"  # as the test's module, which pytest has rewritten
    return config


class RankOutcome(StrEnum):
    """The outcome of a test on a rank."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    EXITED = "exited"  # pytest.exit(), or the debugger's q: it ends the run


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the test; equal on two ranks if it is the same one."""

    message: str
    category: type[Warning]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Style:
    """pytest's options.

    traceback: --tb. shows_locals: --showlocals. is_short: --full-trace is not given.
    terminal: for the debugger; None if there is none. uses_pdb: --pdb.
    explanations: the explanations of failed assertions, see `read_settings`.
    """

    traceback: Any
    shows_locals: bool
    is_short: bool = True
    terminal: str | None = None
    uses_pdb: bool = False
    explanations: tuple[str, ...] = ()


@dataclass(slots=True)
class RankReport:
    """The report of one rank.

    summary: the exception in a line; "" without one.
    place: where the rank left the test.
    shown: the exception as pytest shows it. error: the exception, pickled; None if it cannot be.
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
    """Carries the report of a rank on which the test did not pass. As an exception, so that the other ranks notice."""

    def __init__(self, report: RankReport) -> None:
        super().__init__(report)
        self.report = report


_OUTCOMES: dict[type[BaseException], RankOutcome] = {
    pytest.skip.Exception: RankOutcome.SKIPPED,
    pytest.xfail.Exception: RankOutcome.XFAILED,
    pytest.exit.Exception: RankOutcome.EXITED,
}
_SHOWN_BY_TEXT = frozenset({RankOutcome.SKIPPED, RankOutcome.XFAILED, RankOutcome.EXITED})
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
        own = {}
        if "monkeypatch" in signature(function).parameters:
            own = {"monkeypatch": patch}
        try:
            with (
                explains_assertions(style.explanations),
                stops_at_breakpoints(style.terminal, report.rank, patch),
            ):
                call.run({**arguments, **own})
            report.place = call.place
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - pytest reports each exception of a test
            describe(report, error, call, style)
        report.warned = [Warned(str(each.message), each.category, each.filename, each.lineno) for each in caught]

    if report.outcome in {RankOutcome.FAILED, RankOutcome.EXITED}:
        raise RankFailedError(report)
    return report


def describe(report: RankReport, error: BaseException, call: Call, style: Style) -> None:
    """Write an exception of the test into the report; with --pdb open the debugger."""
    report.outcome = _OUTCOMES.get(type(error), RankOutcome.FAILED)
    report.place = call.find_place(error)
    info = pytest.ExceptionInfo.from_exception(error)
    if report.outcome in _SHOWN_BY_TEXT:
        report.summary = str(error)
    else:
        report.summary = info.exconly(tryshort=True)

    shown = info.getrepr(
        style=style.traceback, showlocals=style.shows_locals, tbfilter=hide_own_frames if style.is_short else False
    )
    report.shown = shown
    if not can_be_pickled(shown):
        report.shown = str(shown)
    report.error = pack_error(error)

    if style.uses_pdb and report.outcome is RankOutcome.FAILED:
        report.was_debugged = True
        refusal = open_pdb(report, style.terminal, f"{shown}", info.tb)
        if refusal is not None:
            first, newline, rest = report.summary.partition("\n")
            report.summary = f"{first} ({refusal}){newline}{rest}"


def open_pdb(report: RankReport, terminal: str | None, shown: str, step: TracebackType) -> str | None:
    """Open the debugger at a failure; half a sentence with the reason if that is impossible."""
    if report.rank != 0:
        return "--pdb stops on rank 0 only"
    if terminal is None:
        return "--pdb needs pytest's terminal, and there is none"
    try:
        if debug(terminal, f"{shown}\n>>> the test has failed on rank 0: you are in that process", step):
            report.outcome = RankOutcome.EXITED
    except OSError as error:
        return f"--pdb: rank 0 cannot use the terminal {terminal}: {error.strerror}"
    return None


def hide_own_frames(info: pytest.ExceptionInfo[BaseException]) -> Any:
    """The traceback without hvdrun's frames, unless there are no others."""
    others = info.traceback.filter(lambda entry: not (entry.ishidden(info) or str(entry.path).startswith(_OWN_FOLDERS)))
    return others or info.traceback


def can_be_pickled(value: object) -> bool:
    """Whether the value can be pickled, and unpickled."""
    return _pack(value) is not None


def pack_error(error: BaseException) -> bytes | None:
    """The exception, pickled; None if it cannot be, or would end the program that raises it."""
    return _pack(error) if isinstance(error, Exception) else None


def _pack(value: object) -> bytes | None:
    """The value, pickled; None if it cannot be, or not unpickled."""
    try:
        with BytesIO() as file:
            NamingPickler(file).dump(value)
            packed = file.getvalue()
        cloudpickle.loads(packed)
    except Exception:  # noqa: BLE001 - the object's own code may raise anything
        return None
    return packed
