"""A home directory for each test that asks for one, and an OpenSSH server that lets its user in."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hvdrun.transport.ssh.servers import Home, SshServer, make_home, make_key, serving, write_ssh


@pytest.fixture(scope="session")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The users' key: its private half."""
    return make_key(tmp_path_factory.mktemp("keys") / "id_ed25519")


@pytest.fixture
def home(tmp_path: Path, key_pair: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A user's home, with no ssh agent."""
    made = make_home(tmp_path / "home", key_pair)
    monkeypatch.setenv("HOME", str(made.path))
    monkeypatch.setenv("PATH", write_ssh(tmp_path / "bin", made.config))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return made


@pytest.fixture(scope="session")
def sshd() -> Iterator[SshServer]:
    """The server of all tests that need no other."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as found:
        yield found


@pytest.fixture
def server(sshd: SshServer, home: Home) -> Iterator[SshServer]:
    """A server that knows the user, and that the user knows; no connection is left of the tests before."""
    sshd.authorize(home.key)
    home.trust(sshd)
    yield sshd
    sshd.clear()


@pytest.fixture
def ssh_agent(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh agent without keys; its socket."""
    path = home.path / "agent.sock"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path
        process.terminate()
