"""Where MXNet is not installed these tests are skipped; their ranks are processes of their own, which import it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import pytest

from tests.frameworks import NO_MXNET
from tests.worker_runtime.ranks import RankPool


class _Skipped(pytest.Module):
    """A file that cannot even be imported."""

    def collect(self) -> NoReturn:
        pytest.skip(NO_MXNET, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip each file that would import MXNet where there is none."""
    if find_spec("mxnet") is not None:
        return None
    skipped: pytest.Module = _Skipped.from_parent(parent, path=module_path)
    return skipped


def read_errors(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function on a rank, and read the errors of MXNet's engine that are unread by then."""
    import mxnet as mx  # noqa: PLC0415 - the ranks have it

    try:
        return function(*arguments)
    finally:
        with suppress(mx.MXNetError):
            mx.nd.waitall()


class MXNetRanks(RankPool):
    """Ranks in which no error of MXNet's engine outlives the test that made it.

    MXNet keeps an error until a program reads what could not be computed. An unread one is raised by a later operation
    that draws random numbers, or ends the process when it forks.
    """

    def run(self, function: Callable[..., Any], *arguments: object, size: int = 2) -> list[Any]:
        """As `Ranks.run`."""
        cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        return super().run(read_errors, function, *arguments, size=size)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Up to three ranks apart from those of other tests, which may fork: MXNet's threads are not theirs."""
    pool = MXNetRanks()
    yield pool
    pool.close()
