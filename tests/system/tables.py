"""Tables of stories, of which `make test` plays the first and `make nightly` the rest."""

from collections.abc import Iterable
from typing import Any

import pytest


def rest_nightly(rows: Iterable[Any], first: int = 1) -> list[Any]:
    """A test's parameters: the first rows as they are, the others marked `nightly`. A tuple is a row of several."""
    return [
        row if number < first else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.nightly)
        for number, row in enumerate(rows)
    ]
