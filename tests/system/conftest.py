"""What every system test gets: the real hvdrun in a folder of its own, and a check that nothing is left behind."""

import shutil
from collections.abc import Generator, Iterator

import pytest

from tests.system.evidence import HAS_FAILED
from tests.system.launcher import Launcher
from tests.system.leftovers import make_room


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep whether the test itself failed, for the check after it."""
    report = yield
    if call.when == "call":
        item.stash[HAS_FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def hvdrun(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """`hvdrun("-np", "2", "python", "train.py")`, or `.start(...)` for a test that interrupts it.

    After the test nothing of it may be left before long: no process, no socket, no temporary file, nothing in
    /dev/shm. A test that failed while its hvdrun ran is not blamed for leaving it.
    """
    room = make_room()
    try:
        with Launcher(room) as launcher:
            yield launcher
            failed = request.node.stash.get(HAS_FAILED, True)
            left = None if failed and launcher.has_running else launcher.watch.settle()
        if left:
            pytest.fail(f"left behind by this test:\n{left}", pytrace=False)
    finally:
        shutil.rmtree(room, ignore_errors=True)
