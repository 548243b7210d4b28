"""A pipe and a terminal for every test of the console that asks for one."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.hvdrun.console.screens import Screen


@pytest.fixture
def pipe() -> Iterator[Screen]:
    """A pipe, and what was written into it."""
    with closing(Screen.pipe()) as screen:
        yield screen


@pytest.fixture
def terminal() -> Iterator[Screen]:
    """A terminal, and what was written onto it."""
    with closing(Screen.terminal()) as screen:
        yield screen
