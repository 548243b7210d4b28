"""A fixture that gives a test its ranks."""

from collections.abc import Iterator

import pytest

from tests.worker_runtime.collectives.worlds import Worlds


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """Makes any number of ranks, for as many functions as there are."""
    maker = Worlds()
    yield maker
    maker.close()
