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


def test_a_low_limit_of_threads_is_named_and_those_that_were_started_end(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_addresses(monkeypatch, resource.RLIM_INFINITY)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_three(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    with pytest.raises(LimitTooLowError, match="can start only 3; raise `ulimit -u`"):
        refuse_scarcity("the launcher")
    assert not any(thread.is_alive() for thread in started)
