"""How many files may be open."""

import resource
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from rendezvous.server.file_limit import count_connections, raise_file_limit


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """A soft limit below the hard one; both are put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 900)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_becomes_the_hard_one(limits: tuple[int, int]) -> None:
    _, hard = limits
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_limit_that_the_kernel_does_not_change_stays(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", Mock(side_effect=ValueError("not allowed to raise maximum limit")))
        raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_connections_use_less_than_half_of_the_file_limit(limits: tuple[int, int]) -> None:
    low, _ = limits
    assert 0 < 2 * count_connections() < low


def test_connections_have_a_limit_though_open_files_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert 1000 < count_connections() < 100_000
