"""The ssh configuration, files and what they include; and where it leads a host's name, with the command line."""

import getpass
import tempfile
from pathlib import Path

import pytest

from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.config_file import read_file
from hvdrun.transport.ssh.failures import BadSshConfigError, JumpFailedError
from hvdrun.transport.ssh.target import Target, resolve_target

HOME = Path("/home/ada")


def read(tmp_path: Path, text: str, system: str | None = None, **included: str) -> SshConfig:
    folder = tmp_path / ".ssh"
    folder.mkdir()
    (folder / "config").write_text(text, encoding="utf-8")
    for name, content in included.items():
        (folder / name).write_text(content, encoding="utf-8")
    if system is not None:
        (tmp_path / "ssh_config").write_text(system, encoding="utf-8")
    return SshConfig.read(tmp_path, system=tmp_path / "ssh_config")


def test_the_user_s_file_comes_before_the_machine_s(tmp_path: Path) -> None:
    found = read(tmp_path, "Host a\n  Port 1\n", "User machine\nPort 3\n").lookup("a")
    assert (found["port"], found["user"]) == (("1",), ("machine",))


def test_an_included_file_lies_beside_the_one_that_includes_it(tmp_path: Path) -> None:
    assert read(tmp_path, 'Include none "one"  # both\n', one="Port 1\n").lookup("a")["port"] == ("1",)


@pytest.mark.parametrize(
    "criteria", ["tagged a", "localnetwork 10.0.0.0/8", "host a sessiontype exec", "!final colour x"]
)
def test_a_section_whose_condition_cannot_be_decided_does_not_apply(tmp_path: Path, criteria: str) -> None:
    assert "user" not in read(tmp_path, f"Match {criteria}\n User wrong\n").lookup("a")


def test_names_without_wildcards_are_known(tmp_path: Path) -> None:
    assert read(tmp_path, "Host a b* !c\nhost = d\nMatch host e\n").names == {"a", "d"}


MISUNDERSTOOD = ("Match host", 'User "a', "Port many", "Port 70000", "User a b", "ConnectTimeout soon", "HostName %q")


@pytest.mark.parametrize("text", [*MISUNDERSTOOD, "ProxyJump j:0", "ProxyJump a:b:c"])
def test_what_cannot_be_understood_is_one_sentence(text: str) -> None:
    with pytest.raises(BadSshConfigError, match=r"^the ssh configuration for the host 'a' cannot be read: .+\.$"):
        resolve(text)


def resolve(text: str, host: str = "a", user: str | None = None, port: int | None = None) -> Target:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config").write_text(text, encoding="utf-8")
        config = SshConfig([read_file(Path(folder) / "config", Path(folder), HOME)], HOME)
    return resolve_target(host, config=config, user=user, port=port)


def test_without_configuration_it_is_what_ssh_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    target = resolve("")
    assert (target.host, target.address, target.port, target.known_as) == ("a", "a", 22, "a")
    assert target.user == getpass.getuser()
    assert target.keys == ()
    assert target.default_keys == tuple(HOME / ".ssh" / name for name in ("id_ed25519", "id_ecdsa", "id_rsa"))
    assert target.known_hosts[0] == HOME / ".ssh" / "known_hosts"
    assert Path("/etc/ssh/ssh_known_hosts") in target.known_hosts
    assert not target.accept_new
    assert (target.agent_socket, target.via, target.proxy_command) == (None, None, None)


def test_identity_files_add_up_and_replace_the_default_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(HOME))
    target = resolve("IdentityFile ~/one\nIdentityFile %d/two\n")
    assert target.keys == (HOME / "one", HOME / "two")
    assert target.default_keys == ()


@pytest.mark.parametrize(
    ("value", "accepts"), [("accept-new", True), ("No", True), ("off", True), ("yes", False), ("ask", False)]
)
def test_strict_host_key_checking(value: str, *, accepts: bool) -> None:
    assert resolve(f"StrictHostKeyChecking {value}\n").accept_new is accepts


def test_known_hosts_files_and_the_name_in_them_can_be_set() -> None:
    target = resolve("Port 2222\nHostKeyAlias Cluster\nUserKnownHostsFile ~/k1 /k2\nGlobalKnownHostsFile none\n")
    assert target.known_as == "cluster"
    assert target.known_hosts == (HOME / "k1", Path("/k2"))


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        ("", "/run/agent"),
        ("IdentityAgent none\n", None),
        ("IdentityAgent SSH_AUTH_SOCK\n", "/run/agent"),
        ("IdentityAgent ~/sock\n", "/home/ada/sock"),
        ("IdentityAgent $OTHER_SOCK\n", "/run/other"),
    ],
)
def test_the_ssh_agent_is_where_it_is_configured(
    text: str, socket: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER_SOCK", "/run/other")
    assert resolve(text).agent_socket == socket


def test_jump_hosts_form_a_chain_each_with_its_own_configuration() -> None:
    target = resolve("Host a\n ProxyJump bob@j1:2222, j2\nHost j2\n HostName 10.0.0.2\n User carl\n", user="ada")
    assert target.via is not None
    assert (target.via.host, target.via.address, target.via.user) == ("j2", "10.0.0.2", "carl")
    assert target.via.via is not None
    assert (target.via.via.host, target.via.via.port, target.via.via.user) == ("j1", 2222, "bob")
    assert target.via.via.via is None


def test_a_jump_host_may_have_one_of_its_own() -> None:
    target = resolve("Host a\n ProxyJump j1\nHost j1\n ProxyJump [2001:db8::1]:2222\n")
    assert target.via is not None
    assert target.via.via is not None
    assert (target.via.via.address, target.via.via.port) == ("2001:db8::1", 2222)


def test_jump_hosts_in_a_circle_are_reported() -> None:
    with pytest.raises(JumpFailedError, match="does one lead to itself"):
        resolve("Host *\n ProxyJump j\n")


@pytest.mark.parametrize("text", ["ProxyJump none\n", "Host a\n ProxyJump none\nHost *\n ProxyJump j\n"])
def test_none_is_no_jump_host(text: str) -> None:
    assert resolve(text).via is None


def test_a_proxy_command_has_its_words_replaced() -> None:
    assert resolve("User u\nProxyCommand nc -X 5 %h %p\n", port=2222).proxy_command == "nc -X 5 a 2222"
    assert resolve("ProxyCommand none\n").proxy_command is None
