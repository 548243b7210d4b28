"""The lab of hosts as a fixture: import `lab` in a conftest or a test's module."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.lab.lab import Lab
from tests.lab.plan import HostPlan
from tests.lab.requirements import require_lab


class BuildLab(Protocol):
    """Builds a lab that lasts until the test's end."""

    def __call__(
        self, hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None, shared: Iterable[Path] = ()
    ) -> Lab:
        """See `tests.lab.lab.Lab`."""


@pytest.fixture
def lab() -> Iterator[BuildLab]:
    """Builds labs for one test."""
    require_lab()
    with contextlib.ExitStack() as stack:

        def build(
            hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None, shared: Iterable[Path] = ()
        ) -> Lab:
            return stack.enter_context(Lab(hosts, launcher=launcher, shared=shared))

        yield build
