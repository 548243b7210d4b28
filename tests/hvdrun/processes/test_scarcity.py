"""A process that may not have enough threads or memory names the limit."""

import resource
import threading

import pytest

from hvdrun.errors import LimitTooLowError
from hvdrun.processes.scarcity import refuse_scarcity

GIBIBYTE = 1 << 30


def limit_addresses(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, GIBIBYTE])
def test_a_process_that_may_have_enough_is_not_refused(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    limit_addresses(monkeypatch, limit)
    before = threading.active_count()
    refuse_scarcity("the agent")
    assert threading.active_count() == before


def test_a_low_limit_of_addresses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_addresses(monkeypatch, GIBIBYTE - 1024)
    with pytest.raises(
        LimitTooLowError, match=r"^the agent needs 1048576 KiB of addresses, but `ulimit -v` is 1048575; "
    ):
        refuse_scarcity("the agent")


def test_a_low_limit_of_threads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_addresses(monkeypatch, resource.RLIM_INFINITY)
    monkeypatch.setattr("hvdrun.processes.scarcity.count_startable", lambda most: most - 13)
    with pytest.raises(LimitTooLowError, match=r"^the agent needs 16 threads, but can start only 3; raise `ulimit -u`"):
        refuse_scarcity("the agent")
    with pytest.raises(LimitTooLowError, match="both needs 32 threads, but can start only 19"):
        refuse_scarcity("both", 32)
