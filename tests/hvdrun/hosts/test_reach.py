"""Which hosts are this machine, and which way leads to each, by the options and the user's ssh configuration."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hvdrun.hosts.reach import Transports, is_local
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.remote import Remote
from hvdrun.transport.child import LocalTransport
from hvdrun.transport.ssh.ssh_errors import BadSshConfigError, ConnectionRefusedError  # noqa: A004 - the builtin one is an OSError
from hvdrun.transport.ssh.target import Target
from hvdrun.transport.ssh.transport import SshTransport, SshTransports
from rendezvous.core.model import Host
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.specs import build_spec, with_fields
from tests.hvdrun.transport.ssh.servers import write_ssh
from tests.waiting import happen, in_loop

FOREIGN = "192.0.2.1"  # reserved for documentation (RFC 5737)


def own_address() -> str | None:
    """An address of this machine that is not the loopback's."""
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


def test_an_unknown_name_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)  # a real resolver may take its time to say so
    assert not is_local("no-such-host.invalid")


def make_spec(*remote: str) -> JobSpec:
    hosts = (Host("localhost", 1), *(Host(name, 1) for name in remote))
    side = Remote(frozenset(remote), ("true",), "/usr/bin/python3")
    return build_spec(command=("true",), size=len(hosts), hosts=hosts, directory=Path("/"), remote=side)


def test_other_machines_are_reached_over_ssh() -> None:
    transports = Transports()
    assert isinstance(transports.make("localhost", make_spec(FOREIGN)), LocalTransport)
    assert isinstance(transports.make(FOREIGN, make_spec(FOREIGN)), SshTransport)


def test_a_job_on_this_machine_alone_does_not_wait_for_paramiko() -> None:
    script = """
import sys
from pathlib import Path
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.jobspec import Workers
from hvdrun.hosts.reach import Transports
from rendezvous.core.model import Host
Transports().make("localhost", JobSpec(Workers(("true",), 1, (Host("localhost", 1),), Path("/"))))
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
Host c*
  HostName 127.0.0.1
  Port 1
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration."""
    (tmp_path / "config").write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("PATH", write_ssh(tmp_path / "bin", tmp_path / "config"))
    return tmp_path


@pytest.fixture
def spec() -> JobSpec:
    return build_spec(
        command=("true",),
        size=2,
        hosts=tuple(Host(name, 1) for name in HOSTS),
        directory=Path("/data"),
        remote=Remote(frozenset(HOSTS), ("true",), "/usr/bin/python3", prefix="source env.sh"),
    )


def resolve(host: str, spec: JobSpec) -> Target:
    return SshTransports().make(host, spec)._resolve()


@pytest.mark.usefixtures("home")
def test_the_configuration_says_how_to_get_to_a_host(spec: JobSpec) -> None:
    target = resolve("a", spec)
    assert (target.host, target.address, target.port, target.user) == ("a", "192.0.2.1", 2222, "somebody")
    assert resolve("b", spec).port == 22


def test_the_options_of_the_command_line_outweigh_the_configuration(home: Path, spec: JobSpec) -> None:
    key = home / "key"
    target = resolve(
        "a", with_fields(spec, ssh_port=2200, ssh_identity_file=key, ssh_accept_new=True, users={"a": "me"})
    )
    assert (target.address, target.port, target.user, target.accept_new) == ("192.0.2.1", 2200, "me", True)
    assert target.keys == (key, Path("/another/key"))


def test_an_agent_is_started_with_the_job_s_python_prefix_and_directory(spec: JobSpec) -> None:
    agent = SshTransports().make("a", spec)._agent
    assert (agent.python, agent.prefix, agent.directory) == ("/usr/bin/python3", "source env.sh", "/data")


def test_all_hosts_share_one_limit_of_simultaneous_logins(spec: JobSpec) -> None:
    transports = SshTransports()
    assert len({id(transports.make(host, spec)._gate) for host in HOSTS}) == 1


@in_loop
async def test_a_command_of_a_configuration_runs_once_per_host_and_holds_no_other_up(home: Path, spec: JobSpec) -> None:
    runs, go = home / "runs", home / "go"
    with (home / "config").open("a", encoding="utf-8") as config:
        config.write(f'Match exec "echo %n >> {runs}; until [ -e {go} ]; do sleep 0.01; done"\n User asked\n')
    transports = SshTransports()
    opening = [asyncio.create_task(transports.make(host, spec).open()) for host in ("c1", "c2", "c1")]
    await happen(lambda: runs.exists() and runs.read_text().count("\n") == 2, "the commands' start")
    go.touch()
    failures = await asyncio.gather(*opening, return_exceptions=True)
    assert [type(failure) for failure in failures] == [ConnectionRefusedError] * 3
    assert sorted(runs.read_text().split()) == ["c1", "c2"]


@in_loop
async def test_commands_of_the_configuration_end_with_the_job(home: Path, spec: JobSpec) -> None:
    pid = home / "pid"
    config = f'Match exec "echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600; true"\n User never\n{CONFIG}'
    (home / "config").write_text(config, encoding="utf-8")
    transports = SshTransports()
    opening = asyncio.create_task(transports.make("c", spec).open())
    await happen(pid.exists, "the command's start")
    transports.close()
    with pytest.raises(BadSshConfigError):
        await opening
    await happen(lambda: not is_alive(int(pid.read_text())), "its end")


@in_loop
async def test_a_configuration_that_cannot_be_understood_is_reported_when_a_host_is_opened(
    home: Path, spec: JobSpec
) -> None:
    (home / "config").write_text("Port 1\nUser\n", encoding="utf-8")
    with pytest.raises(BadSshConfigError, match=r"for the host 'a' .*config line 2: "):
        await SshTransports().make("a", spec).open()
