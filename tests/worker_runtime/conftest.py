"""Fixtures that give a test its ranks, or a worker's generations whose other members the test plays."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.worker_runtime.generation import PlayedGeneration
    from tests.worker_runtime.ranks import RankPool

# The fixtures import what they need: the pure tests beneath this folder do without torch.


@pytest.fixture(scope="session")
def ranks() -> "Iterator[RankPool]":
    """Up to three ranks that many tests share."""
    from tests.worker_runtime.ranks import RankPool  # noqa: PLC0415 - see above

    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def before() -> "Iterator[PlayedGeneration]":
    """A generation that ends: the worker is rank 0 of 3."""
    from tests.worker_runtime.generation import PlayedGeneration  # noqa: PLC0415 - see above

    with PlayedGeneration(1, size=3) as generation:
        yield generation


@pytest.fixture
def after() -> "Iterator[PlayedGeneration]":
    """The next one, without rank 1."""
    from tests.worker_runtime.generation import PlayedGeneration  # noqa: PLC0415 - see above

    with PlayedGeneration(2) as generation:
        yield generation
