"""Logging in to real OpenSSH servers with keys of all sorts."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.transport.ssh.login_failures import AuthenticationFailedError
from tests.hvdrun.transport.ssh.servers import USER, Home, SshServer, make_key, needs_sshd, reach, serving

pytestmark = needs_sshd


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh agent without keys; its socket."""
    path = tmp_path / "agent.sock"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path
        process.terminate()


def hold(*keys: Path) -> None:
    """Give keys to the ssh agent, and take their files away."""
    for key in keys:
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        key.unlink()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_keys_that_ssh_would_try_are_tried(home: Home, server: SshServer, kind: str) -> None:
    home.key.unlink()
    server.authorize(make_key(home.path / ".ssh" / f"id_{kind}", kind) if kind != "ed25519" else remake(home.key))
    reach(home.target(server))


def remake(key: Path) -> Path:
    key.with_name(f"{key.name}.pub").unlink()
    return make_key(key)


def test_the_key_that_is_asked_for_comes_first(home: Home, tmp_path: Path) -> None:
    key = make_key(tmp_path / "mine", "rsa")
    with serving(tmp_path / "strict", options=("MaxAuthTries 2",)) as server:  # one, and the question what is allowed
        server.authorize(key)
        home.trust(server)
        reach(home.target(server, identity_file=key))


def test_a_configured_key_is_used(home: Home, server: SshServer, tmp_path: Path) -> None:
    server.authorize(make_key(tmp_path / "mine"))
    home.configure(f"IdentityFile {tmp_path}/mine\n")
    reach(home.target(server))


def test_the_ssh_agent_s_keys_are_used(home: Home, server: SshServer, ssh_agent: Path) -> None:
    assert ssh_agent.exists()
    hold(home.key)
    reach(home.target(server))


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
    assert error.unusable == (f"{tmp_path}/nonsense (no private key that can be read)", "/no/such/key (does not exist)")


def test_a_server_that_takes_no_keys_is_told(home: Home, tmp_path: Path) -> None:
    options = ("PubkeyAuthentication no", "PasswordAuthentication yes")
    with serving(tmp_path / "server", options=options) as server:
        home.trust(server)
        with pytest.raises(AuthenticationFailedError, match=r"allows password.*keys only") as caught:
            reach(home.target(server))
    assert caught.value.tried == ()


def test_a_server_that_wants_more_than_a_key_is_told(home: Home, tmp_path: Path) -> None:
    options = ("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    with serving(tmp_path / "server", options=options) as server:
        server.authorize(home.key)
        home.trust(server)
        with pytest.raises(AuthenticationFailedError, match=r"allows password.*a key alone is not enough"):
            reach(home.target(server))


def test_a_server_that_hangs_up_after_too_many_keys_is_told(home: Home, ssh_agent: Path, tmp_path: Path) -> None:
    assert ssh_agent.exists()
    hold(*(make_key(tmp_path / f"key{number}") for number in range(4)))
    with serving(tmp_path / "server", options=("MaxAuthTries 3",)) as server:
        server.authorize(home.key)
        home.trust(server)
        with pytest.raises(AuthenticationFailedError, match=r"ended the connection; name the one right key with -i"):
            reach(home.target(server))


def test_an_ssh_agent_that_is_gone_is_no_obstacle(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", os.devnull)
    reach(home.target(server))
    server.authorize()
    with pytest.raises(AuthenticationFailedError, match="the ssh agent at /dev/null"):
        reach(home.target(server))
