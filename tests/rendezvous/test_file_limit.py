"""How many files may be open, and that it is put back."""

import resource
from collections.abc import Iterator

import pytest

from rendezvous.file_limit import FileLimit, count_connections
from tests.rendezvous.stage import open_stage, run


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    """A soft limit below the hard one; both are put back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 900)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_once_and_put_back_once(limits: tuple[int, int]) -> None:
    low, hard = limits
    limit = FileLimit()
    for _ in range(2):
        limit.raise_to_hard()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    for _ in range(2):
        limit.put_back()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)


def test_what_was_not_raised_is_not_put_back(limits: tuple[int, int]) -> None:
    FileLimit().put_back()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_connections_leave_files_for_everything_else(limits: tuple[int, int]) -> None:
    low, _ = limits
    assert 0 < 2 * count_connections() < low


def test_connections_have_a_limit_where_files_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert 1000 < count_connections() < 100_000


def test_the_limit_is_raised_while_a_server_serves(limits: tuple[int, int]) -> None:
    low, hard = limits

    async def story() -> None:
        async with open_stage():
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, hard)

    run(story())
