"""A home directory and an OpenSSH server that lets its user in, for each test that asks for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hvdrun.transport.ssh.servers import Home, SshServer, make_home, serving


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A user's home, with no ssh agent."""
    made = make_home(tmp_path / "home")
    monkeypatch.setenv("HOME", str(made.path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return made


@pytest.fixture
def server(tmp_path: Path, home: Home) -> Iterator[SshServer]:
    """A server that knows the user, and that the user knows."""
    with serving(tmp_path / "server") as found:
        found.authorize(home.key)
        home.trust(found)
        yield found
