"""What hvdrun makes of the ssh configuration of a host: `ssh -G` as a process, and the target that follows from it."""

import os
import pwd
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdrun.transport.ssh import config as ssh_config
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.ssh_errors import BadSshConfigError, JumpFailedError
from hvdrun.transport.ssh.target import Target, resolve_target
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.transport.ssh.servers import write_ssh
from tests.waiting import wait_until

HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)  # in the password database, where ssh looks for it
DEFAULT_KEYS = tuple(HOME / ".ssh" / name for name in ("id_ed25519", "id_ecdsa", "id_rsa"))
KNOWN_HOSTS = (
    *(HOME / ".ssh" / name for name in ("known_hosts", "known_hosts2")),
    *(Path("/etc/ssh", name) for name in ("ssh_known_hosts", "ssh_known_hosts2")),
)

Resolve = Callable[..., Target]


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Resolves a host by the text of a configuration."""
    file = tmp_path / "config"
    monkeypatch.setenv("PATH", write_ssh(tmp_path / "bin", file))

    def resolve(text: str, host: str = "a", user: str | None = None, port: int | None = None) -> Target:
        file.write_text(text, encoding="utf-8")
        return resolve_target(host, config=SshConfig(HOME), user=user, port=port)

    return resolve


def test_without_configuration_the_target_is_that_of_ssh(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    target = resolve("", "A")
    assert (target.host, target.address, target.port, target.known_as) == ("A", "a", 22, "a")
    assert target.user == pwd.getpwuid(os.getuid()).pw_name
    assert (target.keys, target.default_keys, target.known_hosts) == ((), DEFAULT_KEYS, KNOWN_HOSTS)
    assert not target.accept_new
    assert (target.agent_socket, target.via, target.proxy_command) == (None, None, None)
    assert (target.certificates, target.revoked_keys, target.connect_timeout_seconds) == ((), None, None)


def test_default_keys_of_a_newer_ssh_are_not_taken_for_configured_ones(resolve: Resolve) -> None:
    shown = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_mldsa44_ed25519")  # OpenSSH 10.6's
    assert resolve("".join(f"IdentityFile ~/.ssh/{name}\n" for name in shown)).keys == ()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshConfig:
    """The configuration of a machine without ssh."""
    monkeypatch.setenv("PATH", "/no/such/folder")
    monkeypatch.setattr(ssh_config, "_SYSTEM", tmp_path / "ssh_config")
    (tmp_path / ".ssh").mkdir()
    return SshConfig(tmp_path)


def test_without_ssh_and_its_files_the_defaults_are_the_same(
    tmp_path: Path, resolve: Resolve, request: pytest.FixtureRequest
) -> None:
    by_ssh = resolve("", "A", "me", 2222)
    target = resolve_target("A", config=request.getfixturevalue("bare"), user="me", port=2222)
    assert target.default_keys[0] == tmp_path / ".ssh" / "id_ed25519"
    assert target.policy.algorithms == {}  # all is allowed
    fields = set(by_ssh.__slots__) - {"policy"}
    ours = {name: str(getattr(target, name)).replace(str(tmp_path), str(HOME)) for name in fields}
    assert ours == {name: str(getattr(by_ssh, name)) for name in fields}


@pytest.mark.parametrize("file", [".ssh/config", "ssh_config"])
def test_a_file_for_ssh_without_ssh_is_reported(bare: SshConfig, file: str) -> None:
    (bare.home / file).touch()
    match = f"'a' cannot be read: the program ssh, which reads {bare.home}/{file}, is not installed here; install"
    with pytest.raises(BadSshConfigError, match=match):
        resolve_target("a", config=bare)


def test_an_account_that_ssh_does_not_serve_has_the_defaults_unless_it_has_a_file(
    bare: SshConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "which", lambda _name: "/usr/bin/ssh")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    (bare.home / "ssh_config").touch()
    assert resolve_target("A", config=bare).address == "a"
    (bare.home / ".ssh" / "config").touch()
    with pytest.raises(BadSshConfigError, match=r"\.ssh/config, needs an account, .* none with the number 54321; add"):
        resolve_target("a", config=bare)


REFUSED_BY_SSH = ('User "a', "User", "Port 70000", "ConnectTimeout soon", "Nonsense x", "Match host", "ProxyJump a:b:c")


@pytest.mark.parametrize("text", REFUSED_BY_SSH)
def test_a_configuration_that_ssh_refuses_is_one_sentence_with_file_and_line(resolve: Resolve, text: str) -> None:
    with pytest.raises(
        BadSshConfigError,
        match=r"^the ssh configuration for the host 'a' cannot be read: [^\n]*config:? line 2: [^\n]*[^.]\.$",
    ) as caught:
        resolve(f"# first\n{text}\n")
    assert "terminating" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["HostName %q", "IdentityFile ~/%q", "CertificateFile ${HVDRUN_UNSET}", "ProxyJump %q", "ProxyCommand %q"]
)
def test_an_unknown_token_or_variable_is_one_sentence(resolve: Resolve, text: str) -> None:
    with pytest.raises(BadSshConfigError, match=r"^the ssh .* 'a' cannot be read: .*(%q|HVDRUN_UNSET).*\.$"):
        resolve(text)


def test_included_files_conditions_and_tokens_are_ssh_s(tmp_path: Path, resolve: Resolve) -> None:
    (tmp_path / "more").write_text("HostName %h.example # both\nPort 2222\n", encoding="utf-8")
    target = resolve(
        f'Host b\n User wrong\nMatch host a user ada exec "test %n = a"\n Include {tmp_path}/mor*\n'
        "Match final host *.example\n HostKeyAlias Final\n",
        user="ada",
    )
    assert (target.address, target.port, target.user, target.known_as) == ("a.example", 2222, "ada", "final")


def test_identity_files_add_up_and_replace_the_default_ones(resolve: Resolve) -> None:
    target = resolve("IdentityFile ~/one\nIdentityFile %d/two-%n\nIdentityFile ~/.ssh/id_rsa\n")
    assert target.keys == (HOME / "one", HOME / "two-a", HOME / ".ssh" / "id_rsa")
    assert target.default_keys == ()
    assert (resolve("IdentityFile none\n").keys, resolve("IdentityFile none\n").default_keys) == ((), ())


@pytest.mark.parametrize(
    ("value", "accepts"), [("accept-new", True), ("no", True), ("off", True), ("yes", False), ("ask", False)]
)
def test_strict_host_key_checking_decides_whether_an_unknown_key_is_accepted(
    resolve: Resolve, value: str, *, accepts: bool
) -> None:
    assert resolve(f"StrictHostKeyChecking {value}\n").accept_new is accepts


def test_other_settings_of_a_login_can_be_set(resolve: Resolve) -> None:
    target = resolve(
        "Port 2222\nHostKeyAlias Cluster\nUserKnownHostsFile ~/k1 /k2-%h\nGlobalKnownHostsFile none\n"
        "CertificateFile ~/c-%h\nIdentitiesOnly true\nRevokedHostKeys ~/r-%n\nHashKnownHosts yes\nConnectTimeout 1m30\n"
        "AddressFamily inet6\n"
    )
    assert (target.known_as, target.principal) == ("cluster", "cluster")
    assert target.known_hosts == (HOME / "k1", Path("/k2-a"))
    assert (target.certificates, target.revoked_keys) == ((HOME / "c-a",), HOME / "r-a")
    assert (target.identities_only, target.hash_known_hosts, target.connect_timeout_seconds) == (True, True, 90)
    assert target.family.name == "AF_INET6"


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        ("", "/run/agent"),
        ("IdentityAgent none\n", None),
        ("IdentityAgent SSH_AUTH_SOCK\n", "/run/agent"),
        ("IdentityAgent ~/sock-%n\n", f"{HOME}/sock-a"),
        ("IdentityAgent $OTHER_SOCK\n", "/run/other"),
    ],
)
def test_the_ssh_agent_is_where_it_is_configured(
    resolve: Resolve, text: str, socket: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("OTHER_SOCK", "/run/other")
    assert resolve(text).agent_socket == socket


def test_jump_hosts_form_a_chain_each_with_its_own_configuration(resolve: Resolve) -> None:
    target = resolve("Host a\n ProxyJump bob@j1:2222,j2\nHost j2\n HostName 10.0.0.2\n User carl\n", user="ada")
    assert target.via is not None
    assert (target.via.host, target.via.address, target.via.user) == ("j2", "10.0.0.2", "carl")
    assert target.via.via is not None
    assert (target.via.via.host, target.via.via.port, target.via.via.user) == ("j1", 2222, "bob")
    assert target.via.via.via is None


def test_a_jump_host_may_have_one_of_its_own(resolve: Resolve) -> None:
    target = resolve("Host a\n ProxyJump j1\nHost j1\n ProxyJump [2001:db8::1]:2222\n")
    assert target.via is not None
    assert target.via.via is not None
    assert (target.via.via.address, target.via.via.port) == ("2001:db8::1", 2222)


def test_jump_hosts_in_a_circle_are_reported(resolve: Resolve) -> None:
    with pytest.raises(JumpFailedError, match="does one lead to itself"):
        resolve("Host j\n ProxyJump a\nHost a\n ProxyJump j\n")


@pytest.mark.parametrize("text", ["ProxyJump none\n", "Host a\n ProxyJump none\nHost *\n ProxyJump j\n"])
def test_the_word_none_is_no_jump_host(resolve: Resolve, text: str) -> None:
    assert resolve(text).via is None


def test_a_proxy_command_has_its_words_replaced(resolve: Resolve) -> None:
    assert resolve("User u\nProxyCommand nc -X 5 %h %p\n", port=2222).proxy_command == "nc -X 5 a 2222"
    assert resolve("ProxyCommand none\n").proxy_command is None


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SshConfig]:
    """The configuration by a shell script in the place of ssh."""

    def pretend(script: str) -> SshConfig:
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return SshConfig(tmp_path)

    return pretend


def test_threads_that_ask_for_one_host_share_one_process(tmp_path: Path, pretend: Callable[[str], SshConfig]) -> None:
    config = pretend(f"echo >> {tmp_path}/runs; echo hostname $4; ! cat | grep .")  # our standard input is not for it
    with ThreadPoolExecutor(20) as pool:
        found = pool.map(lambda number: config.lookup(f"host{number % 2}")["hostname"], range(20))
        assert list(found) == [[f"host{number % 2}"] for number in range(20)]
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "\n\n"


def test_an_error_is_raised_in_all_threads_that_ask_and_the_next_asks_again(
    tmp_path: Path, pretend: Callable[[str], SshConfig]
) -> None:
    go = tmp_path / "go"
    config = pretend(f"while ! [ -e {go} ]; do sleep 0.01; done; . {go}")
    failures: list[str] = []

    def ask() -> None:
        try:
            config.lookup("a")
        except BadSshConfigError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    go.write_text("echo wrong >&2; exit 255", encoding="utf-8")
    for thread in threads:
        thread.join(60)
    assert failures == ["the ssh configuration for the host 'a' cannot be read: wrong."] * 2
    go.write_text("echo hostname b", encoding="utf-8")
    assert config.lookup("a")["hostname"] == ["b"]


@pytest.mark.parametrize("script", ["exit 0", "echo nothing of the kind"])
def test_another_program_that_is_called_ssh_is_reported(pretend: Callable[[str], SshConfig], script: str) -> None:
    with pytest.raises(BadSshConfigError, match="'ssh -G a' ended with exit code 0"):
        pretend(script).lookup("a")


def test_a_look_up_that_hangs_is_killed_with_its_commands_and_reported(
    tmp_path: Path, pretend: Callable[[str], SshConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pid"
    config = pretend(f"sh -c 'echo $$ > {path}; sleep 600; true'")
    for limit_seconds in (1.0, 10.0, 50.0):  # a busy machine may need longer to start it
        monkeypatch.setattr(ssh_config, "LIMIT_SECONDS", limit_seconds)
        with pytest.raises(BadSshConfigError, match=r"'ssh -G a' did not end within \d+ s; does a command of Match"):
            config.lookup("a")
        if path.exists() and path.read_text(encoding="utf-8"):
            break
    wait_until(lambda: not is_alive(int(path.read_text(encoding="utf-8"))))


def test_a_look_up_whose_hvdrun_was_killed_ends_itself_with_its_commands(
    tmp_path: Path, pretend: Callable[[str], SshConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pid"
    config = pretend(f"sh -c 'echo $$ > {path}; sleep 600; true'")
    for own_limit_seconds in (1.0, 10.0):  # before that of hvdrun; a busy machine may need longer to start it
        monkeypatch.setattr(ssh_config, "_CLOSE_SECONDS", own_limit_seconds - ssh_config.LIMIT_SECONDS)
        with pytest.raises(BadSshConfigError, match="ended with exit code -9"):
            config.lookup("a")
        if path.exists() and path.read_text(encoding="utf-8"):
            break
    wait_until(lambda: not is_alive(int(path.read_text(encoding="utf-8"))))


def test_the_configuration_needs_no_program_but_ssh(
    tmp_path: Path, pretend: Callable[[str], SshConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pretend("echo hostname b")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert config.lookup("a")["hostname"] == ["b"]


def test_a_look_up_that_the_kernel_does_not_end_is_left(
    pretend: Callable[[str], SshConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(ssh_config, "_kill", left.append)  # it waits for a broken disk
    for limit in ("LIMIT_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(ssh_config, limit, 0.1)
    try:
        with pytest.raises(BadSshConfigError, match="did not end"):
            pretend("exec sleep 600").lookup("a")
    finally:
        os.killpg(left[0].pid, signal.SIGKILL)
        left[0].wait()


def test_a_lookup_after_the_end_starts_no_program(tmp_path: Path, pretend: Callable[[str], SshConfig]) -> None:
    config = pretend(f"touch {tmp_path}/started")
    config.close()
    with pytest.raises(BadSshConfigError):
        config.lookup("a")
    assert not (tmp_path / "started").exists()
