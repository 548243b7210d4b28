"""Which hosts are this machine, and which way leads to each, by the options and the user's ssh configuration."""

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hvdrun.jobspec import JobSpec, RemoteSide, SshOptions
from hvdrun.transport.local import LocalTransport
from hvdrun.transport.reach import is_local, reach_all
from hvdrun.transport.ssh.reach import reach_remote
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


HOSTS = ("a", "b")
CONFIG = """
Host a
  HostName 192.0.2.1
  Port 2222
  User somebody
  IdentityFile /another/key
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.fixture
def spec() -> JobSpec:
    return JobSpec(
        command=("true",),
        size=2,
        hosts=tuple(Host(name, 1) for name in HOSTS),
        directory=Path("/data"),
        remote=RemoteSide(frozenset(HOSTS), ("true",), "/usr/bin/python3"),
        remote_prefix="source env.sh",
    )


@pytest.mark.usefixtures("home")
def test_the_configuration_says_how_to_get_to_a_host(spec: JobSpec) -> None:
    ways = reach_remote(HOSTS, spec)
    assert list(ways) == ["a", "b"]
    target = ways["a"]._target
    assert (target.host, target.address, target.port, target.user) == ("a", "192.0.2.1", 2222, "somebody")
    assert ways["b"]._target.port == 22


def test_the_options_outweigh_it(home: Path, spec: JobSpec) -> None:
    key = home / "key"
    options = SshOptions(port=2200, identity_file=key, accept_new=True)
    target = reach_remote(HOSTS, replace(spec, ssh=options, users={"a": "me"}))["a"]._target
    assert (target.address, target.port, target.user, target.accept_new) == ("192.0.2.1", 2200, "me", True)
    assert target.keys == (key, Path("/another/key"))


@pytest.mark.usefixtures("home")
def test_the_agents_are_started_as_the_job_wants_it(spec: JobSpec) -> None:
    agents = [way._agent for way in reach_remote(HOSTS, spec).values()]
    assert [(agent.python, agent.prefix, agent.directory) for agent in agents] == [
        ("/usr/bin/python3", "source env.sh", "/data")
    ] * 2


@pytest.mark.usefixtures("home")
def test_all_hosts_together_log_in_only_so_many_at_a_time(spec: JobSpec) -> None:
    assert len({id(way._gate) for way in reach_remote(HOSTS, spec).values()}) == 1
