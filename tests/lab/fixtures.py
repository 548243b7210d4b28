"""The lab of hosts as a fixture: import `lab` and `labs` in a conftest or a test's module."""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

import pytest

from tests.lab.lab import Lab
from tests.lab.plan import HostPlan
from tests.lab.requirements import require_lab

Built_co = TypeVar("Built_co", covariant=True)
_MOST_LABS = 6  # that are not in use
_SETTLING_SECONDS = 0.3  # a new lab takes as long; sshd's processes for sessions that are over need some of it
_PAUSE_SECONDS = 0.02


class Build(Protocol[Built_co]):
    """Builds a lab, or something around one, that lasts until the test's end."""

    def __call__(self, hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None) -> Built_co:
        """See `tests.lab.lab.Lab`."""


BuildLab = Build[Lab]


class Labs:
    """Labs that no test has changed, for tests that want the same hosts."""

    def __init__(self) -> None:
        self._unused: list[Lab] = []

    def take(self, wanted: Lab) -> Lab:
        """A lab that is built like the wanted one, which has not been built; else the wanted one itself."""
        for lab in self._unused:
            if lab.is_like(wanted):
                self._unused.remove(lab)
                return lab
        return wanted.open()

    def give_back(self, lab: Lab) -> None:
        """Keep a lab if it is as it was when it had been built, and remove it otherwise."""
        deadline = time.monotonic() + _SETTLING_SECONDS
        while not (is_new := lab.is_new()) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        if not is_new:
            lab.close()
            return
        shutil.rmtree(lab.shared)
        lab.shared.mkdir()
        self._unused.append(lab)
        if len(self._unused) > _MOST_LABS:
            self._unused.pop(0).close()

    def close(self) -> None:
        """Remove all of them."""
        for lab in self._unused:
            lab.close()


@pytest.fixture(scope="session")
def labs() -> Iterator[Labs]:
    """The labs that are not in use."""
    labs = Labs()
    yield labs
    labs.close()


@pytest.fixture
def lab(labs: Labs) -> Iterator[BuildLab]:
    """Builds labs for one test."""
    require_lab()
    with contextlib.ExitStack() as stack:

        def build(hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None) -> Lab:
            taken = labs.take(Lab(hosts, launcher=launcher))
            stack.callback(labs.give_back, taken)
            return taken

        yield build
