"""One sequencer for the tests of a file, each with a generation of its own; and what one consists of, in process."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.worker_runtime.coordination.sequencer.client import Process
from tests.worker_runtime.coordination.sequencer.ends import Ends
from worker_runtime.coordination.sequencer.connection import Poller


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with Process() as started:
        yield started
        assert started.end() == (0, "")


@pytest.fixture
def poller() -> Iterator[Poller]:
    with closing(Poller()) as made:
        yield made


@pytest.fixture
def ends(poller: Poller) -> Iterator[Ends]:
    with closing(Ends(poller)) as made:
        yield made
