"""Configurations and certificates mean what they mean to OpenSSH's own client: `ssh -G`, and logins by `ssh`."""

import functools
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.errors import LaunchError
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.config_file import read_file
from hvdrun.transport.ssh.failures import BadSshConfigError
from hvdrun.transport.ssh.target import resolve_target
from hvdrun.transport.ssh.tokens import name_local_user
from tests.hvdrun.transport.ssh.servers import (
    USER,
    Home,
    SshServer,
    certify,
    hold,
    make_key,
    needs_sshd,
    reach,
    read_public,
    serving,
)

HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)  # ssh asks for no variable
CONFIGURATIONS = {
    "nothing": "",
    "the first value counts": "Host a\n Port 1\nHost *\n Port 2\n",
    "a negated pattern": "Host !a *\n User wrong\nHost * !b\n User right\n",
    "wildcards": "Host ?\n User one\nHost a*\n Port 7\nHost [a]\n Port 8\n",
    "case matters in Host": "Host A\n User upper\n",
    "case does not in Match": "Match host A\n User any\n",
    "commas are for Match alone": "Host a,b\n User wrong\nMatch host b,a\n Port 5\n",
    "equals signs and tabs": "\tPort\t=\t8\nUser=bob\n",
    "quotes": 'User \'x\'y"z"\nIdentityFile "/a b/c"\nIdentityFile /x\\ y\n',
    "quoted patterns": 'Host "a" "b c" # comment\n User right\n',
    "comments": "# Port 1\nPort 7 # seven\nUser x#y\n",
    "HostName with a token": "HostName %h.Example\n",
    "a short address": "HostName 127.1\n",
    "an address of version 6": "HostName 2001:DB8:0::1\n",
    "Match host sees HostName": "HostName 10.0.0.1\nMatch host 10.*\n User inner\nMatch originalhost a\n Port 3\n",
    "Match user sees User": "User bob\nMatch user bob,!carl\n Port 4\nMatch user ada\n Port 5\n",
    "Match localuser": f"Match localuser {name_local_user()}\n Port 4\n",
    "Match exec": 'Match exec "test %n-%h-%p-%r-%u = a-A.x-22-bob-$(id -un)"\n User never\n',
    "Match exec with what is known": 'User bob\nHostName A.x\nMatch exec "test %n-%h-%p-%r = a-A.x-22-bob"\n Port 9\n',
    "Match exec is skipped": 'Match host b exec "touch FOLDER/ran"\n User never\nMatch !exec false\n Port 9\n',
    "Match final": "Match final host b.x\n User final\nHost b.x\n Port 4\nHost a\n HostName b.x\n",
    "Match final all": "Match final all\n User last\nHost a\n User first\n Port 2\n",
    "Match canonical": "Match canonical\n User wrong\nMatch !canonical user *\n Port 9\n",
    "Match all": "Host b\n User b\nMatch all\n User all\n",
    "Match with equals": 'Match host=a originalhost="a"\n User right\n',
    "Include": "Include FOLDER/one FOLDER/t*\nPort 5\n",
    "Include in a section": "Host b\n Include FOLDER/one\nHost a\n Include FOLDER/two\n HostName after\n",
    "a file that includes itself": "Include FOLDER/config\n",
    "ProxyJump": "Host a\n ProxyJump u@j:22,k # comment\n ProxyCommand never\n",
    "ProxyCommand": "ProxyCommand nc -X 5 %h %p # no comment\nProxyJump never\n",
    "no ProxyJump": "ProxyJump none\nHost *\n ProxyJump j\n",
    "no ProxyCommand": "ProxyCommand none\nProxyJump j\n",
    "no ProxyJump, but a command": "ProxyJump none\nProxyCommand x\n",
    "keys": "IdentityFile ~/a\nIdentityFile %d/b-%n\nIdentityFile ~/a\nCertificateFile /c-%h\nIdentitiesOnly true\n",
    "known hosts": "UserKnownHostsFile ~/k1 /k2-%h\nGlobalKnownHostsFile /g\nHostKeyAlias Al\nHashKnownHosts yes\n",
    "checking": "StrictHostKeyChecking off\nRevokedHostKeys /r\n",
    "accept-new": "StrictHostKeyChecking accept-new\nConnectTimeout 1m30\n",
    "the ssh agent": "IdentityAgent ~/agent-%n\nIdentityAgent none\n",
    "CanonicalizeHostname, not found": "CanonicalizeHostname yes\nCanonicalDomains invalid\nMatch final\n Port 6\n",
    "CanonicalizeHostname without a way back": (
        "CanonicalizeHostname yes\nCanonicalDomains invalid\nCanonicalizeFallbackLocal no\n"
    ),
    "CanonicalizeHostname behind a proxy": "CanonicalizeHostname yes\nCanonicalizeFallbackLocal no\nProxyCommand x\n",
    "CanonicalizeMaxDots": "HostName a.b.c\nCanonicalizeHostname always\nCanonicalizeFallbackLocal no\n",
    "an option twice in a line": "User a b\n",
    "a quote without an end": 'User "a\n',
    "no argument": "User\n",
    "a port that is none": "Port 70000\n",
    "a jump host that is none": "ProxyJump a:b:c\n",
    "an unknown token": "HostName %q\n",
}
INCLUDED = {"one": "Host a\n User one\n", "two": "Port 2\nHost b\n User two\n"}


needs_ssh = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="no OpenSSH client here: apt-get install openssh-client"
)
COMPARED = (
    *("hostname", "port", "user", "identityfile", "certificatefile", "identitiesonly", "hostkeyalias", "proxyjump"),
    *("proxycommand", "known_hosts", "hashknownhosts", "stricthostkeychecking", "revokedhostkeys", "connecttimeout"),
    *("identityagent", "canonicalizehostname"),
)
WORDS = {"true": "yes", "false": "no", "off": "no"}  # ssh says some values in other words


def ask_ssh(file: Path) -> dict[str, list[str]] | None:
    """What ssh makes of a configuration for the host a; None where it refuses it."""
    command = ["ssh", "-G", "-F", str(file), "a"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found: dict[str, list[str]] = {}
    for line in said.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(WORDS.get(value, value))
    found["known_hosts"] = [" ".join(found.pop(f"{whose}knownhostsfile", ["?"])[0] for whose in ("user", "global"))]
    return found if said.returncode == 0 else None


def ask_hvdrun(file: Path) -> dict[str, list[str]]:
    """What hvdrun makes of it."""
    config = SshConfig([read_file(file, file.parent, HOME)], HOME)
    target = resolve_target("a", config=config)
    found = {
        keyword: [WORDS.get(value.lower(), value) for value in values]
        for keyword, values in config.lookup("a").items()
        if not (keyword.startswith("proxy") and values == ("none",))
    }
    found["known_hosts"] = [" ".join(map(str, target.known_hosts))]
    if target.connect_timeout_seconds is not None:
        found["connecttimeout"] = [str(target.connect_timeout_seconds)]
    if "identityagent" in found:
        found["identityagent"] = [str(target.agent_socket or "none")]
    if "hostkeyalias" in found:
        found["hostkeyalias"] = [target.known_as]
    return found


@needs_ssh
@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_means_what_ssh_says(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    for name, content in {**INCLUDED, "config": text}.items():
        (tmp_path / name).write_text(content.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    theirs, default = ask_ssh(file), ask_ssh(Path(os.devnull))
    if theirs is None:
        with pytest.raises((BadSshConfigError, ValueError)):
            ask_hvdrun(file)
        return
    assert default is not None
    ours = {**default, **ask_hvdrun(file)}
    assert {word: ours.get(word) for word in COMPARED} == {word: theirs.get(word) for word in COMPARED}
    assert not (tmp_path / "ran").exists()


AUTHORITY_KINDS = ("ed25519", "ecdsa", "rsa", "other")
LOGIN = """Host far
 HostName 127.0.0.1
 Port {port}
 User {user}
 IdentityFile {key}
 UserKnownHostsFile {known_hosts}
 GlobalKnownHostsFile /dev/null
 StrictHostKeyChecking yes
 UpdateHostKeys no
"""


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificate authorities of all kinds, and one that nobody knows: their private keys."""
    folder = tmp_path_factory.mktemp("authorities")
    return {kind: make_key(folder / kind, "ed25519" if kind == "other" else kind) for kind in AUTHORITY_KINDS}


def log_in(home: Home, server: SshServer, *, extra: str = "", known: str = "", key: Path | None = None) -> bool:
    """Ssh and hvdrun agree whether the user can log in there; whether it is so.

    extra: more lines of the configuration; they count first. known: the known_hosts file.
    """
    words = {"port": server.port, "user": USER, "key": key or home.key, "known_hosts": home.known_hosts}
    home.configure(f"Host far\n{extra}\n{LOGIN.format(**words)}")
    home.known_hosts.write_text(known, encoding="utf-8")
    command = ["ssh", "-F", str(home.path / ".ssh" / "config"), "-o", "BatchMode=yes", "far", "true"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    home.known_hosts.write_text(known, encoding="utf-8")
    ours = ""
    try:
        reach(home.target(host="far"))
    except LaunchError as error:
        ours = str(error)
    assert (ours == "") is (theirs.returncode == 0), (ours, theirs.stderr)
    return not ours


ANY = "@cert-authority * CA"
HOST_CERTIFICATES = {  # how the certificate is made, known_hosts, the configuration, and whether the host is trusted
    "by its address": ("ed25519 -h -n 127.0.0.1", ANY, "", True),
    "by its alias": ("ed25519 -h -n far.example", ANY, "HostKeyAlias far.example", True),
    "for another name": ("ed25519 -h -n far.example", ANY, "", False),
    "by an authority on one port": ("ed25519 -h -n 127.0.0.1", "@cert-authority [127.0.0.1]:PORT CA", "", True),
    "by an authority without its port": ("ed25519 -h -n 127.0.0.1", "@cert-authority 127.0.0.1 CA", "", True),
    "by an authority for other hosts": ("ed25519 -h -n 127.0.0.1", "@cert-authority *.example,!127.* CA", "", False),
    "by an unknown authority": ("other -h -n 127.0.0.1", ANY, "", False),
    "by a key that is none": ("ed25519 -h -n 127.0.0.1", "* CA", "", False),
    "by an ECDSA key": ("ecdsa -h -n 127.0.0.1", ANY, "", True),
    "by an RSA key": ("rsa -h -n 127.0.0.1", ANY, "", True),
    "by an RSA key with SHA-1": ("rsa -h -n 127.0.0.1 -t ssh-rsa", ANY, "", False),
    "expired": ("ed25519 -h -n 127.0.0.1 -V 20200101:20210101", ANY, "", False),
    "expired, of a known key": ("ed25519 -h -n 127.0.0.1 -V 20200101:20210101", f"{ANY}\nNAME KEY", "", True),
    "expired, of a new key": ("ed25519 -h -V 20200101:20210101", ANY, "StrictHostKeyChecking accept-new", True),
    "not valid yet": ("ed25519 -h -n 127.0.0.1 -V 20990101:20991231", ANY, "", False),
    "with an option that must be understood": ("ed25519 -h -n 127.0.0.1 -O critical:x=y", ANY, "", False),
    "by a revoked authority": ("ed25519 -h -n 127.0.0.1", f"{ANY}\n@revoked * CA", "", False),
    "of a revoked key": ("ed25519 -h -n 127.0.0.1", f"{ANY}\n@revoked * KEY", "", False),
    "of a key in a file of revoked ones": ("ed25519 -h -n 127.0.0.1", ANY, "RevokedHostKeys FILE", False),
    "beside another known key": ("ed25519 -h -n 127.0.0.1", f"NAME OTHER\n{ANY}", "", True),
    "unknown beside another known key": ("other -h -n 127.0.0.1", f"NAME OTHER\n{ANY}", "", False),
    "of no use, the key is known without its port": ("other -h", "127.0.0.1 KEY", "", True),
}


@needs_ssh
@needs_sshd
@pytest.mark.parametrize("case", [
    pytest.param(case, id=name, marks=() if number % 3 == 0 else pytest.mark.nightly)
    for number, (name, case) in enumerate(HOST_CERTIFICATES.items())
])  # fmt: skip
def test_a_host_is_trusted_for_its_certificate_where_ssh_trusts_it(
    home: Home, tmp_path: Path, authorities: dict[str, Path], case: tuple[str, str, str, bool]
) -> None:
    made, known, extra, is_trusted = case
    signer, *options = made.split()
    authority = "ed25519" if signer == "other" else signer
    certify_host = functools.partial(certify, authorities[signer])
    with serving(tmp_path / "server", certify_host=lambda key: certify_host(key, *options)) as server:
        server.authorize(home.key)
        key = read_public(server.host_keys["ed25519"])
        (tmp_path / "revoked").write_text(f"# revoked\n{key} a comment\n", encoding="utf-8")
        words = {"CA": read_public(authorities[authority]), "KEY": key, "OTHER": read_public(authorities["other"])}
        words |= {"PORT": str(server.port), "NAME": f"[127.0.0.1]:{server.port}", "FILE": str(tmp_path / "revoked")}
        known, extra = (
            re.sub(r"\b[A-Z]+\b", lambda found: words.get(found[0], found[0]), text) for text in (known, extra)
        )
        assert log_in(home, server, known=known, extra=extra) is is_trusted


USER_CERTIFICATES = {  # how the certificate is made, whether the key is authorized, and whether the user gets in
    "of the user": (f"ed25519 -n {USER}", False, True),
    "of somebody else": ("ed25519 -n somebody", False, False),
    "by an unknown authority": (f"other -n {USER}", False, False),
    "expired": (f"ed25519 -n {USER} -V 20200101:20210101", False, False),
    "expired, of an authorized key": (f"ed25519 -n {USER} -V 20200101:20210101", True, True),
    "unreadable, of an authorized key": ("", True, True),
}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, authorities: dict[str, Path]) -> Iterator[SshServer]:
    """A server that trusts an authority with its users."""
    public = authorities["ed25519"].with_name("ed25519.pub")
    with serving(tmp_path_factory.mktemp("trusting"), options=(f"TrustedUserCAKeys {public}",)) as server:
        yield server


@needs_ssh
@needs_sshd
@pytest.mark.parametrize("kind", ["ed25519", pytest.param("rsa", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("made", "is_authorized", "gets_in"), USER_CERTIFICATES.values(), ids=USER_CERTIFICATES)
def test_a_certificate_beside_a_key_is_used_as_ssh_uses_it(
    home: Home,
    trusting: SshServer,
    authorities: dict[str, Path],
    kind: str,
    made: str,
    *,
    is_authorized: bool,
    gets_in: bool,
) -> None:
    key = make_key(home.path / "mine", kind)
    if made:
        signer, *options = made.split()
        certify(authorities[signer], key, *options)
    else:
        key.with_name("mine-cert.pub").write_text("nonsense\n", encoding="utf-8")
    trusting.authorize(*([key] if is_authorized else []))
    assert log_in(home, trusting, known=trusting.known_line(), key=key, extra="IdentitiesOnly yes") is gets_in


@needs_ssh
@needs_sshd
@pytest.mark.usefixtures("ssh_agent")
@pytest.mark.parametrize("kind", ["ed25519", pytest.param("rsa", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("place", ["a file", "the agent", "a file, with its key in the agent"])
def test_a_certificate_is_found_where_ssh_finds_it(
    home: Home, trusting: SshServer, authorities: dict[str, Path], kind: str, place: str
) -> None:
    trusting.authorize()
    key = make_key(home.path / "mine", kind)
    certificate = certify(authorities["ed25519"], key, "-n", USER)
    extra = ""
    if place != "the agent":
        extra = f"CertificateFile {certificate.rename(home.path / 'elsewhere')}"
    if place != "a file":
        hold(key)
        key.with_name("mine-cert.pub").unlink(missing_ok=True)
    assert log_in(home, trusting, known=trusting.known_line(), key=key, extra=extra)
