"""Fixtures that give a test its ranks."""

from collections.abc import Iterator

import pytest

from tests.worker_runtime.ranks import RankPool, Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Up to three ranks that many tests share."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def own_ranks() -> Iterator[Ranks]:
    """Two ranks that one test has to itself, and may kill."""
    with Ranks(2) as fresh:
        yield fresh
