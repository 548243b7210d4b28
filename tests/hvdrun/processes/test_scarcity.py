"""A process that may not have what it needs of its machine names that."""

import errno
import os
import resource
import socket
import threading

import pytest

from hvdrun.errors import LimitTooLowError, LoopbackDownError, ProcHiddenError
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


def test_a_low_limit_of_open_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    most = {resource.RLIMIT_NOFILE: 63}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most.get(which, resource.RLIM_INFINITY),) * 2)
    with pytest.raises(LimitTooLowError, match=r"^the agent needs 64 open files, but `ulimit -Hn` is 63; raise it"):
        refuse_scarcity("the agent")


def test_a_hidden_proc_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(path: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(os, "stat", find)
    with pytest.raises(ProcHiddenError, match=r"^the agent cannot read /proc \(No such file or directory\): mount "):
        refuse_scarcity("the agent")


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.ENETDOWN])
def test_a_loopback_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def connect(_: object, place: tuple[str, int]) -> None:
        raise OSError(number, "", place)

    monkeypatch.setattr(socket, "socket", type("Probe", (socket.socket,), {"connect": connect}))
    with pytest.raises(LoopbackDownError, match=r"^the agent cannot reach 127.0.0.1 \(Network is .*ip link set lo up"):
        refuse_scarcity("the agent")
