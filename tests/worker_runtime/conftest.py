"""Fixtures that give a test its ranks, or a worker's generations whose other members the test plays."""

from collections.abc import Iterator

import pytest

from tests.worker_runtime.generation import Generation
from tests.worker_runtime.ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Up to three ranks that many tests share."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def before() -> Iterator[Generation]:
    """A generation that ends: the worker is rank 0 of 3."""
    with Generation(1, size=3) as generation:
        yield generation


@pytest.fixture
def after() -> Iterator[Generation]:
    """The next one, without rank 1."""
    with Generation(2) as generation:
        yield generation
