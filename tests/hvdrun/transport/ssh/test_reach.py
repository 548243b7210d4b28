"""The ways to remote hosts, as the options and the user's ssh configuration have them."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.jobspec import JobSpec, RemoteSide, SshOptions
from hvdrun.transport.ssh.failures import BadSshConfigError
from hvdrun.transport.ssh.reach import reach_remote
from rendezvous.core.model import Host

HOSTS = ("a", "b")
CONFIG = """
Host a
  HostName 192.0.2.1
  Port 2222
  User somebody
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
    assert target.keys == (key,)


@pytest.mark.usefixtures("home")
def test_the_agents_are_started_as_the_job_wants_it(spec: JobSpec) -> None:
    agents = [way._agent for way in reach_remote(HOSTS, spec).values()]
    assert [(agent.python, agent.prefix, agent.directory) for agent in agents] == [
        ("/usr/bin/python3", "source env.sh", "/data")
    ] * 2


@pytest.mark.usefixtures("home")
def test_all_hosts_together_log_in_only_so_many_at_a_time(spec: JobSpec) -> None:
    assert len({id(way._gate) for way in reach_remote(HOSTS, spec).values()}) == 1


def test_a_configuration_that_cannot_be_understood_is_told(home: Path, spec: JobSpec) -> None:
    (home / ".ssh" / "config").write_text("Host a\n  Port many\n", encoding="utf-8")
    with pytest.raises(BadSshConfigError, match=r"^the ssh configuration for the host 'a' cannot be read"):
        reach_remote(HOSTS, spec)
