"""Where MXNet is not installed these tests are skipped; their ranks are processes of their own, which import it."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from tests.worker_runtime.ranks import RankPool


class _Skipped(pytest.Module):
    """A file that cannot even be imported."""

    def collect(self) -> NoReturn:
        pytest.skip("mxnet is not installed: pip install '.[mxnet]'", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip each file that would import MXNet where there is none."""
    if find_spec("mxnet") is not None:
        return None
    skipped: pytest.Module = _Skipped.from_parent(parent, path=module_path)
    return skipped


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Up to three ranks apart from those of other tests, which may fork: MXNet's threads are not theirs."""
    pool = RankPool()
    yield pool
    pool.close()
