"""Which hosts are this machine, and which way leads to each."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hvdrun.jobspec import JobSpec, RemoteSide
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.reach import is_local, reach_all
from hvdrun.transport.ssh.transport import SshTransport
from rendezvous.core.model import Host

FOREIGN = "192.0.2.1"  # reserved for documentation (RFC 5737)


def own_address() -> str | None:
    """One that is not the loopback's."""
    addresses = (
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    )
    return next((address for address in addresses if not address.startswith("127.")), None)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.77", "::1", socket.gethostname()])
def test_this_machine_is_known_by_its_names_and_loopback_addresses(host: str) -> None:
    assert is_local(host)


def test_this_machine_is_known_by_its_own_addresses() -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but the loopback's")
    assert is_local(address)


def test_another_machine_is_not_this_one() -> None:
    assert not is_local(FOREIGN)


def test_a_name_that_nobody_knows_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # a real resolver may take its time to say so
    assert not is_local("no-such-host.invalid")


def make_spec(*remote: str) -> JobSpec:
    hosts = (Host("localhost", 1), *(Host(name, 1) for name in remote))
    side = RemoteSide(frozenset(remote), ("true",), "/usr/bin/python3")
    return JobSpec(command=("true",), size=len(hosts), hosts=hosts, directory=Path("/"), remote=side)


def test_this_machine_is_reached_directly() -> None:
    ways = reach_all(["localhost"], make_spec())
    assert isinstance(ways["localhost"], LocalTransport)


def test_other_machines_are_reached_over_ssh_in_the_order_of_the_job() -> None:
    ways = reach_all(["localhost", FOREIGN], make_spec(FOREIGN))
    assert list(ways) == ["localhost", FOREIGN]
    assert isinstance(ways["localhost"], LocalTransport)
    assert isinstance(ways[FOREIGN], SshTransport)


def test_a_job_on_this_machine_alone_does_not_wait_for_paramiko() -> None:
    script = """
import sys
from pathlib import Path
from hvdrun.jobspec import JobSpec
from hvdrun.transport.reach import reach_all
from rendezvous.core.model import Host
reach_all(["localhost"], JobSpec(("true",), 1, (Host("localhost", 1),), Path("/")))
sys.exit("paramiko" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0
