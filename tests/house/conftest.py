"""What all tests of the house share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _without_collection() -> Iterator[None]:
    """No finalizer runs within `ast.parse()`.

    One that logs a traceback parses its lines, and in CPython 3.11 the outer call then raises SystemError, "AST
    constructor recursion depth mismatch".
    """
    gc.disable()
    yield
    gc.enable()
