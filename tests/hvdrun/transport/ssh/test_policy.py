"""What the ssh configuration allows holds for hvdrun as for ssh: algorithms, keys, and where a connection starts."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.dial import dial
from hvdrun.transport.ssh.policy import read_policy
from hvdrun.transport.ssh.ssh_errors import AuthenticationFailedError, NoCommonAlgorithmError, SshPolicyError
from tests.hvdrun.transport.ssh.servers import USER, Home, SshServer, log_in, make_key, needs_sshd, reach, serving
from tests.waiting import LIMIT_SECONDS

NIGHTLY = pytest.mark.nightly
RSA_SERVER = ("HostKeyAlgorithms rsa-sha2-512,rsa-sha2-256",)
OTHER_EXCHANGE = "KexAlgorithms ecdh-sha2-nistp384"
POLICIES = {  # the configuration, the kind of the user's key, the server's options, and whether the user gets in
    "defaults": ("", "ed25519", (), True),
    "a key exchange with a new name": ("", "ed25519", ("KexAlgorithms curve25519-sha256",), True),
    "a key exchange": ("KexAlgorithms ecdh-sha2-nistp256", "ed25519", (), True),
    "another key exchange": ("KexAlgorithms ecdh-sha2-nistp256", "ed25519", (OTHER_EXCHANGE,), False),
    "a cipher": ("Ciphers aes256-gcm@openssh.com", "ed25519", (), True),
    "another cipher": ("Ciphers aes256-ctr", "ed25519", ("Ciphers aes128-ctr",), False),
    "all but a cipher": ("Ciphers -aes128-ctr", "ed25519", ("Ciphers aes128-ctr",), False),
    "a MAC": ("Ciphers aes128-ctr\nMACs hmac-sha2-512-etm@openssh.com", "ed25519", (), True),
    "another MAC": ("Ciphers aes128-ctr\nMACs hmac-sha2-512", "ed25519", ("MACs hmac-sha2-256",), False),
    "a kind of host key": ("HostKeyAlgorithms rsa-sha2-256", "ed25519", (), True),
    "a kind of host key that is not known": ("HostKeyAlgorithms ecdsa-sha2-nistp256", "ed25519", (), False),
    "a kind of user's key": ("PubkeyAcceptedAlgorithms rsa-sha2-256", "rsa", (), True),
    "another kind of user's key": ("PubkeyAcceptedAlgorithms rsa-sha2-256,ecdsa-sha2-nistp256", "ed25519", (), False),
    "all but a kind of user's key": ("PubkeyAcceptedAlgorithms -ssh-ed25519", "ed25519", (), False),
    "another signature of a user's key": (
        "PubkeyAcceptedAlgorithms rsa-sha2-256", "rsa", ("PubkeyAcceptedAlgorithms rsa-sha2-512",), False,
    ),
    "no keys": ("PubkeyAuthentication no", "ed25519", (), False),
    "other methods": ("PreferredAuthentications password,keyboard-interactive", "ed25519", (), False),
    "a key among other methods": ("PreferredAuthentications gssapi-with-mic,publickey", "ed25519", (), True),
    "a large host key": ("RequiredRSASize 3072", "ed25519", RSA_SERVER, False),
    "a large user's key": ("RequiredRSASize 3072", "rsa", (), False),
    "large keys, of another kind": ("RequiredRSASize 3072", "ed25519", (), True),
    "a source": ("BindAddress 127.0.0.2", "ed25519", (f"AllowUsers {USER}@127.0.0.2",), True),
    "no source": ("", "ed25519", (f"AllowUsers {USER}@127.0.0.2",), False),
    "a source by name": ("BindAddress localhost", "ed25519", (f"AllowUsers {USER}@127.0.0.1",), True),
    "a source elsewhere": ("BindAddress 192.0.2.1", "ed25519", (), False),
    "a source of another family": ("BindAddress ::1", "ed25519", (), False),
    "a source that has no address": ("BindAddress nowhere.invalid", "ed25519", (), False),
    "an interface": ("BindInterface lo", "ed25519", (), True),
    "an interface that is not there": ("BindInterface nosuch0", "ed25519", (), False),
    "a source before an interface": ("BindAddress 127.0.0.2\nBindInterface nosuch0", "ed25519", (), True),
    "a command that passes a socket": ("ProxyCommand false\nProxyUseFdpass yes", "ed25519", (), False),
}  # fmt: skip
DAILY = (
    "a key exchange with a new name", "another cipher", "a kind of host key", "another kind of user's key", "a source",
    "a large host key", "an interface",
)  # fmt: skip


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server with an Ed25519 key and an RSA key."""
    with serving(tmp_path_factory.mktemp("two"), kinds=("ed25519", "rsa")) as server:
        yield server


@needs_sshd
@pytest.mark.parametrize("case", [
    pytest.param(case, id=name, marks=() if name in DAILY else NIGHTLY) for name, case in POLICIES.items()
])  # fmt: skip
def test_an_ssh_policy_admits_hvdrun_exactly_where_it_admits_ssh(
    home: Home, two_keys: SshServer, tmp_path: Path, case: tuple[str, str, tuple[str, ...], bool]
) -> None:
    extra, kind, options, gets_in = case
    key = home.key if kind == "ed25519" else make_key(tmp_path / "key", kind)

    def try_at(server: SshServer) -> None:
        server.authorize(key)
        known = "".join(map(server.known_line, server.host_keys))
        assert log_in(home, server, extra=f"{extra}\nIdentitiesOnly yes", known=known, key=key) is gets_in

    if options:
        with serving(tmp_path / "server", kinds=("ed25519", "rsa"), options=options) as server:
            try_at(server)
    else:
        try_at(two_keys)


@needs_sshd
def test_the_first_of_the_allowed_algorithms_that_the_server_has_is_used(home: Home, two_keys: SshServer) -> None:
    two_keys.authorize(home.key)
    home.known_hosts.write_text(two_keys.known_line("rsa") + two_keys.known_line(), encoding="utf-8")
    home.configure("Ciphers aes256-ctr,aes128-ctr\nMACs hmac-sha2-512,hmac-sha2-256\nHostKeyAlgorithms rsa-sha2-256\n")

    async def scenario() -> paramiko.Transport:
        connection = await dial(home.target(two_keys), LIMIT_SECONDS)
        await in_thread(connection.close)
        return connection.client

    client = asyncio.run(scenario())
    found = tuple(getattr(client, name) for name in ("remote_cipher", "remote_mac", "host_key_type"))
    assert found == ("aes256-ctr", "hmac-sha2-512", "rsa-sha2-256")


@needs_sshd
@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        pytest.param(
            "Ciphers chacha20-poly1305@openssh.com",
            r"the ssh configuration for the host 'far' has only Ciphers that hvdrun does not know "
            r"\(chacha20-poly1305@openssh\.com\): add one of aes128-ctr,.*, or let OpenSSH log in, with --rsh ssh\.",
        ),
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "KexAlgorithms that hvdrun does not know .*curve25519"),
        ("MACs umac-128@openssh.com", "MACs that hvdrun does not know .*hmac-sha2-256"),
        ("HostKeyAlgorithms sk-ssh-ed25519@openssh.com", "HostKeyAlgorithms that hvdrun does not know .*ssh-ed25519"),
        ("PubkeyAuthentication no", r"'far' forbids logins with keys \(PubkeyAuthentication no\)"),
        ("PreferredAuthentications password", r"forbids logins with keys \(PreferredAuthentications password\)"),
        ("BindAddress 192.0.2.1", "'far' names BindAddress 192.0.2.1, from which no connection to 127.0.0.1 can start"),
        ("BindInterface nosuch0", "'far' names BindInterface nosuch0, from which no connection"),
        ("ProxyCommand false\nProxyUseFdpass yes", r"passes an open connection \(ProxyUseFdpass\)"),
        (
            "RequiredRSASize 3072\nHostKeyAlgorithms rsa-sha2-512",
            "has 2048 bits, and RequiredRSASize is 3072",
        ),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(home: Home, two_keys: SshServer, extra: str, sentence: str) -> None:
    two_keys.authorize(home.key)
    home.known_hosts.write_text(two_keys.known_line() + two_keys.known_line("rsa"), encoding="utf-8")
    home.configure(f"Host far\n HostName 127.0.0.1\n Port {two_keys.port}\n{extra}\n")
    with pytest.raises(SshPolicyError, match=sentence):
        reach(home.target(host="far"))


@needs_sshd
@pytest.mark.parametrize(
    ("option", "ours", "theirs"),
    [
        ("Ciphers", "aes256-ctr", "aes128-ctr"),
        ("MACs", "hmac-sha2-512", "hmac-sha2-256"),
        ("KexAlgorithms", "ecdh-sha2-nistp256", "ecdh-sha2-nistp384"),
        ("HostKeyAlgorithms", "ecdsa-sha2-nistp256", "ssh-ed25519"),
    ],
)
def test_a_server_without_an_allowed_algorithm_is_reported_with_the_allowed_ones(
    home: Home, tmp_path: Path, option: str, ours: str, theirs: str
) -> None:
    home.configure(f"{option} {ours}\n")
    with serving(tmp_path / "server", options=(f"{option} {theirs}",)) as server:
        server.authorize(home.key)
        home.trust(server)
        sentence = f"takes none of the {option} that hvdrun knows and the ssh configuration allows ({ours})"
        with pytest.raises(NoCommonAlgorithmError, match=re.escape(sentence)):
            reach(home.target(server))


@needs_sshd
def test_a_key_that_may_not_be_offered_is_named(home: Home, server: SshServer) -> None:
    home.configure("PubkeyAcceptedAlgorithms rsa-sha2-512\n")
    with pytest.raises(AuthenticationFailedError) as caught:
        reach(home.target(server))
    assert caught.value.tried == ()
    assert caught.value.unusable == (f"{home.key} (ssh-ed25519: not one of the configured PubkeyAcceptedAlgorithms)",)


@pytest.mark.parametrize(
    "settings",
    [{}, {"ciphers": ["aes128-ctr,chacha20-poly1305@openssh.com"]}, {"pubkeyauthentication": ["host-bound"]}],
    ids=["another ssh", "one known cipher", "another yes"],
)
def test_a_policy_that_leaves_something_refuses_nothing(settings: dict[str, list[str]]) -> None:
    policy = read_policy("far", settings)
    policy.check_login()
    assert policy.choose("Ciphers", ("aes128-ctr",)) == ("aes128-ctr",)


def test_an_older_ssh_names_the_accepted_keys_otherwise() -> None:
    policy = read_policy("far", {"pubkeyacceptedkeytypes": ["ssh-ed25519"]})
    assert policy.allows("PubkeyAcceptedAlgorithms", "ssh-ed25519")
    assert not policy.allows("PubkeyAcceptedAlgorithms", "ecdsa-sha2-nistp256")


def test_a_certificate_of_an_rsa_key_signs_where_its_algorithm_is_allowed() -> None:
    policy = read_policy("far", {"pubkeyacceptedalgorithms": ["rsa-sha2-256-cert-v01@openssh.com,ssh-ed25519"]})
    assert policy.order_rsa() == ("rsa-sha2-256",)
    assert policy.find_refusal(paramiko.RSAKey.generate(1024)) is not None
