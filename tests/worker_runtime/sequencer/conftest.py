"""One sequencer for the tests of a file; each has a generation of its own."""

from collections.abc import Iterator

import pytest

from tests.worker_runtime.sequencer.client import Process


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with Process() as started:
        yield started
        assert started.end() == (0, "")
