"""Logging in to real OpenSSH servers: which of the user's keys are tried, and which of the hosts' are trusted."""

import asyncio
import os
import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import paramiko
import pytest
from paramiko.agent import AgentKey

from hvdrun.transport.ssh.dial import dial
from hvdrun.transport.ssh.login import SshAgent
from hvdrun.transport.ssh.ssh_errors import (
    AuthenticationFailedError,
    HostKeyChangedError,
    HostKeyRevokedError,
    HostKeyUnknownError,
    SshError,
)
from tests.hvdrun.transport.ssh.servers import (
    USER,
    Home,
    SshServer,
    hold,
    make_key,
    needs_sshd,
    reach,
    read_public,
    serving,
)

pytestmark = needs_sshd


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_keys_that_ssh_would_try_are_tried(home: Home, server: SshServer, kind: str) -> None:
    home.key.unlink()
    server.authorize(make_key(home.path / ".ssh" / f"id_{kind}", kind) if kind != "ed25519" else remake(home.key))
    reach(home.target(server))


def remake(key: Path) -> Path:
    key.with_name(f"{key.name}.pub").unlink()
    return make_key(key)


def test_the_requested_key_comes_first(home: Home, tmp_path: Path) -> None:
    key = make_key(tmp_path / "mine", "rsa")
    with serving(tmp_path / "strict", options=("MaxAuthTries 2",)) as server:  # one, and the question what is allowed
        server.authorize(key)
        home.trust(server)
        reach(home.target(server, identity_file=key))


def test_the_ssh_agent_s_keys_are_used(home: Home, server: SshServer, ssh_agent: Path) -> None:
    assert ssh_agent.exists()
    hold(home.key)
    reach(home.target(server))


def test_the_key_of_a_login_is_lost_with_the_ssh_agent_unless_a_file_has_it(
    home: Home, server: SshServer, ssh_agent: Path, tmp_path: Path
) -> None:
    def needs_agent() -> bool:
        connection = asyncio.run(dial(home.target(server), 10.0))
        connection.close()
        return connection.needs_ssh_agent

    assert ssh_agent.exists()
    assert not needs_agent()
    kept = tmp_path / "kept"
    kept.write_bytes(home.key.read_bytes())
    kept.chmod(0o600)
    hold(home.key)
    assert needs_agent()
    kept.rename(home.key)
    assert not needs_agent()


def test_with_identities_only_the_ssh_agent_signs_for_named_keys_alone(
    home: Home, server: SshServer, ssh_agent: Path, tmp_path: Path
) -> None:
    assert ssh_agent.exists()
    other = make_key(tmp_path / "other")
    hold(home.key, other)
    home.configure(f"IdentitiesOnly yes\nIdentityFile {other}\n")
    with pytest.raises(AuthenticationFailedError, match=re.escape(f"{other} (from the ssh agent)")) as caught:
        reach(home.target(server))
    assert len(caught.value.tried) == 1
    home.configure(f"IdentitiesOnly yes\nIdentityFile {home.key}\n")
    reach(home.target(server))


def test_an_encrypted_key_is_left_to_the_ssh_agent(home: Home, server: SshServer, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="secret words")  # noqa: S106 - a test's
    server.authorize(key)
    with pytest.raises(AuthenticationFailedError, match=r"locked \(encrypted\).*ssh-add") as caught:
        reach(home.target(server, identity_file=key))
    assert caught.value.tried == (str(home.key),)


def test_a_refusal_lists_what_was_tried_and_what_is_allowed(home: Home, server: SshServer, tmp_path: Path) -> None:
    server.authorize(make_key(tmp_path / "other"))
    (tmp_path / "nonsense").write_text("nonsense", encoding="utf-8")
    home.configure(f"IdentityFile {home.key}\nIdentityFile {tmp_path}/nonsense\nIdentityFile /no/such/key\n")
    with pytest.raises(AuthenticationFailedError) as caught:
        reach(home.target(server))
    error = caught.value
    assert (error.user, error.methods, error.tried) == (USER, ("publickey",), (str(home.key),))
    assert error.unusable == (
        f"{tmp_path}/nonsense (not a private key that can be read)",
        "/no/such/key (does not exist)",
    )


@pytest.mark.parametrize(
    ("option", "advice", "tried"),
    [("PubkeyAuthentication no", "keys only", 0), ("AuthenticationMethods publickey,password", "is not enough", 1)],
)
def test_a_server_that_wants_more_than_a_key_is_reported(
    home: Home, tmp_path: Path, option: str, advice: str, tried: int
) -> None:
    with serving(tmp_path / "server", options=(option, "PasswordAuthentication yes")) as server:
        server.authorize(home.key)
        home.trust(server)
        with pytest.raises(AuthenticationFailedError, match=f"allows password.*{advice}") as caught:
            reach(home.target(server))
    assert len(caught.value.tried) == tried


@pytest.mark.parametrize("is_seen_by_write", [False, True])
def test_a_connection_that_ends_before_the_server_asks_for_a_key_is_dialed_again(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch, *, is_seen_by_write: bool
) -> None:
    ask, asked = paramiko.Transport.auth_none, list[str]()

    def cut(client: paramiko.Transport, user: str) -> list[str]:
        asked.append(user)
        if len(asked) == 1:
            if is_seen_by_write:
                raise EOFError  # the client is still active
            server.clear()
        return ask(client, user)

    monkeypatch.setattr(paramiko.Transport, "auth_none", cut)
    reach(home.target(server))
    assert len(asked) == 2


def test_a_server_that_ends_after_too_many_keys_is_reported(home: Home, ssh_agent: Path, tmp_path: Path) -> None:
    assert ssh_agent.exists()
    hold(*(make_key(tmp_path / f"key{number}") for number in range(4)))
    with serving(tmp_path / "server", options=("MaxAuthTries 3",)) as server:
        server.authorize(home.key)
        home.trust(server)
        with pytest.raises(AuthenticationFailedError, match=r"ended the connection; give only the right key, with -i"):
            reach(home.target(server))


def test_a_connection_that_ends_with_the_offer_of_a_key_is_reported(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paramiko.Transport, "auth_publickey", Mock(side_effect=EOFError))
    with pytest.raises(AuthenticationFailedError, match=r"ended the connection; give only the right key, with -i"):
        reach(home.target(server))


def test_an_ssh_agent_that_has_ended_is_skipped(home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", os.devnull)
    reach(home.target(server))
    server.authorize()
    with pytest.raises(AuthenticationFailedError, match="the ssh agent at /dev/null"):
        reach(home.target(server))


def test_a_key_that_the_ssh_agent_does_not_use_is_skipped(
    home: Home, server: SshServer, ssh_agent: Path, tmp_path: Path
) -> None:
    assert ssh_agent.exists()
    other = make_key(tmp_path / "other")
    subprocess.run(["ssh-add", "-q", "-c", str(other)], check=True, capture_output=True)  # none confirms
    server.authorize(home.key, other)
    reach(home.target(server))
    server.authorize(other)
    words = r"other.*\(the ssh agent did not sign: key cannot be used for signing\)"
    with pytest.raises(AuthenticationFailedError, match=words):
        reach(home.target(server))


def test_an_ssh_agent_that_falls_silent_is_asked_once(
    home: Home, server: SshServer, ssh_agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ssh_agent.exists()
    hold(make_key(tmp_path / "first"), make_key(tmp_path / "second"))
    get_keys, (ours, theirs) = SshAgent.get_keys, socket.socketpair()

    def silence(agent: SshAgent) -> tuple[AgentKey, ...]:
        keys = get_keys(agent)
        agent._socket.close()
        ours.settimeout(0.1)
        agent._socket = agent._conn = ours  # type: ignore[attr-defined]  # the stubs lack it
        return keys

    monkeypatch.setattr(SshAgent, "get_keys", silence)
    with theirs:
        reach(home.target(server))
        length = int.from_bytes(theirs.recv(4))
        assert len(theirs.recv(1 << 16)) == length, "it was asked again"


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


@pytest.mark.parametrize(("kind", "accept_new"), [("ed25519", True), ("ed25519", False), ("ecdsa", True)])
def test_a_changed_key_is_always_refused(
    home: Home, server: SshServer, tmp_path: Path, kind: str, *, accept_new: bool
) -> None:
    other = read_public(make_key(tmp_path / "other", kind))
    home.known_hosts.write_text(f"# first\n[127.0.0.1]:{server.port} {other}\n", encoding="utf-8")
    home.configure("StrictHostKeyChecking no\n")
    with pytest.raises(HostKeyChangedError, match="Somebody may be listening in") as caught:
        reach(home.target(server, accept_new=accept_new))
    assert (caught.value.file, caught.value.line) == (home.known_hosts, 2)


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_the_known_kind_of_key_is_requested(home: Home, tmp_path: Path, kind: str) -> None:
    with serving(tmp_path / "server", kinds=("ed25519", "ecdsa", "rsa")) as server:
        server.authorize(home.key)
        home.known_hosts.write_text(server.known_line(kind), encoding="utf-8")
        reach(home.target(server))


def test_a_revoked_key_is_refused(home: Home, server: SshServer) -> None:
    home.known_hosts.write_text(
        f"{server.known_line()}@revoked * {read_public(server.host_keys['ed25519'])}\n", encoding="utf-8"
    )
    with pytest.raises(HostKeyRevokedError) as caught:
        reach(home.target(server, accept_new=True))
    assert caught.value.line == 2


def test_a_known_hosts_file_that_cannot_be_written_is_reported(home: Home, server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = replace(home.target(server, accept_new=True), known_hosts=(tmp_path / "file" / "known_hosts",))
    with pytest.raises(SshError, match="cannot be added to"):
        reach(target)


def test_a_refused_login_prints_nothing(home: Home, server: SshServer, capfd: pytest.CaptureFixture[str]) -> None:
    server.authorize()
    with pytest.raises(SshError):
        reach(home.target(server))
    assert capfd.readouterr() == ("", "")
