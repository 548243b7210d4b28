"""The pytest plugin: a test with `@pytest.mark.hvdrun(np=2)` runs on two ranks, and has one result.

pytest finds the plugin by its entry point. Without such a test it imports nothing else and starts nothing.
"""

import os
from collections.abc import Generator
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from unittest import TestCase

import pytest

if TYPE_CHECKING:
    from hvdrun.testing.session import (
        GroupResult,  # noqa: F401 - a key names it
        RankedSession,
    )

_SESSION = pytest.StashKey["RankedSession"]()
_RESULT = pytest.StashKey["GroupResult"]()
_TERMINAL = pytest.StashKey[str | None]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Note the terminal for the debugger, before pytest replaces standard input."""
    early_config.stash[_TERMINAL] = find_terminal()
    yield


def find_terminal() -> str | None:
    """The file of the terminal at standard input; None if it is no terminal."""
    try:
        return os.ttyname(0)
    except OSError:
        return None


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "hvdrun(np=2, **options): run the test on np ranks, as one result; the options are those of hvdrun.Cluster",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on the ranks."""
    marker = pyfuncitem.get_closest_marker("hvdrun")
    if marker is None:
        return None
    result = get_session(pyfuncitem.config).run(pyfuncitem, marker)
    pyfuncitem.stash[_RESULT] = result
    result.announce()
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it has no effect, or a wrong one."""
    if item.get_closest_marker("hvdrun") is None:
        return
    if not isinstance(item, pytest.Function) or not is_plain(item):
        pytest.fail(
            "@pytest.mark.hvdrun is for test functions and methods of plain classes: unittest.TestCase, doctests and "
            "`async def` run in pytest's own process. Remove the marker.",
            pytrace=False,
        )

    if getattr(item.obj, "is_hypothesis_test", False):
        pytest.fail(
            "@given would draw other values on each rank of a test with @pytest.mark.hvdrun: remove the marker, and "
            "give the drawn values to all ranks in the test: cluster.run(check, (drawn,)) with an hvdrun.Cluster.",
            pytrace=False,
        )

    if item.config.option.trace:
        pytest.fail(
            "--trace does not work on the ranks of a test: put breakpoint() at the test's beginning.", pytrace=False
        )


def is_plain(item: pytest.Function) -> bool:
    """The function is called by pytest itself, and the test is done when the call returns."""
    is_of_unittest = item.cls is not None and issubclass(item.cls, TestCase)
    return not is_of_unittest and not iscoroutinefunction(item.obj)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show a failure as the rank saw it, without the frames of hvdrun."""
    report = yield
    result = item.stash.get(_RESULT, None)
    # Other phases run in pytest's process.
    if result is not None and call.when == "call" and call.excinfo is not None:
        result.complete(report)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


def get_session(config: pytest.Config) -> "RankedSession":
    """The workers of this run; created for the first test that needs them."""
    if _SESSION not in config.stash:
        from hvdrun.testing.session import RankedSession  # noqa: PLC0415 - only tests of ranks need it

        config.stash[_SESSION] = RankedSession(config, config.stash.get(_TERMINAL, None))
    return config.stash[_SESSION]
