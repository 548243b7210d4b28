"""Which host keys are trusted, on real OpenSSH servers."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.transport.ssh.failures import SshError
from hvdrun.transport.ssh.login_failures import HostKeyChangedError, HostKeyRevokedError, HostKeyUnknownError
from tests.hvdrun.transport.ssh.servers import Home, SshServer, make_key, needs_sshd, reach, read_public, serving

pytestmark = needs_sshd


def test_an_unknown_key_is_refused_with_its_fingerprint(home: Home, server: SshServer) -> None:
    home.known_hosts.unlink()
    with pytest.raises(HostKeyUnknownError, match=r"SHA256:.*--ssh-accept-new") as caught:
        reach(home.target(server))
    assert caught.value.name == f"[127.0.0.1]:{server.port}"
    assert not home.known_hosts.exists()


def test_an_unknown_key_is_accepted_and_kept_when_that_is_wanted(home: Home, server: SshServer) -> None:
    home.known_hosts.unlink()
    reach(*[home.target(server, accept_new=True)] * 4)
    assert home.known_hosts.read_text(encoding="utf-8") == server.known_line()
    reach(home.target(server))


@pytest.mark.parametrize("accept_new", [True, False])
def test_a_changed_key_is_always_refused(home: Home, server: SshServer, tmp_path: Path, *, accept_new: bool) -> None:
    other = read_public(make_key(tmp_path / "other"))
    home.known_hosts.write_text(f"# first\n[127.0.0.1]:{server.port} {other}\n", encoding="utf-8")
    home.configure("StrictHostKeyChecking no\n")
    with pytest.raises(HostKeyChangedError, match="Somebody may be listening in") as caught:
        reach(home.target(server, accept_new=accept_new))
    assert (caught.value.file, caught.value.line) == (home.known_hosts, 2)


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_the_kind_of_key_that_is_known_is_asked_for(home: Home, tmp_path: Path, kind: str) -> None:
    with serving(tmp_path / "server", kinds=("ed25519", "ecdsa", "rsa")) as server:
        server.authorize(home.key)
        home.known_hosts.write_text(server.known_line(kind), encoding="utf-8")
        reach(home.target(server))


def test_another_kind_of_key_than_the_known_one_is_a_change(home: Home, server: SshServer, tmp_path: Path) -> None:
    other = read_public(make_key(tmp_path / "other", "ecdsa"))
    home.known_hosts.write_text(f"[127.0.0.1]:{server.port} {other}\n", encoding="utf-8")
    with pytest.raises(HostKeyChangedError):
        reach(home.target(server, accept_new=True))


def test_a_revoked_key_is_refused(home: Home, server: SshServer) -> None:
    home.known_hosts.write_text(
        f"{server.known_line()}@revoked * {read_public(server.host_keys['ed25519'])}\n", encoding="utf-8"
    )
    with pytest.raises(HostKeyRevokedError) as caught:
        reach(home.target(server, accept_new=True))
    assert caught.value.line == 2


def test_a_known_hosts_file_that_cannot_be_written_is_told(home: Home, server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = replace(home.target(server, accept_new=True), known_hosts=(tmp_path / "file" / "known_hosts",))
    with pytest.raises(SshError, match="cannot be added to"):
        reach(target)


def test_nothing_is_printed(home: Home, server: SshServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.authorize()
    with pytest.raises(SshError):
        reach(home.target(server))
    assert capfd.readouterr() == ("", "")
