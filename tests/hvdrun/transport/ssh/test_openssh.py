"""Configurations mean what they mean to OpenSSH's own client: by `ssh -G`, and by logins."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from hvdrun.transport.account import name_user
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.config_file import read_file
from hvdrun.transport.ssh.failures import BadSshConfigError
from hvdrun.transport.ssh.target import resolve_target
from tests.hvdrun.transport.ssh.servers import Home, SshServer, log_in, needs_ssh, needs_sshd

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
    "Match localuser": f"Match localuser {name_user()}\n Port 4\n",
    "Match exec": 'Match exec "test %n-%h-%p-%r-%u = a-A.x-22-bob-$(id -un)"\n User never\n',
    "Match exec with what is known": 'User bob\nHostName A.x\nMatch exec "test %n-%h-%p-%r = a-A.x-22-bob"\n Port 9\n',
    "Match exec is skipped": 'Match host b exec "touch FOLDER/ran"\n User never\nMatch !exec false\n Port 9\n',
    "Match final": "Match final host b.x\n User final\nHost b.x\n Port 4\nHost a\n HostName b.x\n",
    "Match final all": "Match final all\n User last\nHost a\n User first\n Port 2\n",
    "Match canonical": "Match canonical\n User wrong\nMatch !canonical user *\n Port 9\n",
    "Match all": "Host b\n User b\nMatch all\n User all\n",
    "Match not host": "Match !host b\n User right\n",
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


@needs_ssh
@needs_sshd
@pytest.mark.parametrize(
    ("extra", "gets_in"),
    [
        ("ProxyJump near", True),
        ("ProxyCommand ssh -F CONFIG -W %h:%p %r@near", True),
        ("HostKeyAlias far.example", False),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("ProxyJump nobody@near", False),
                ("ProxyCommand none\nProxyJump nobody@near", True),
                ('Match originalhost far exec "test %h = 127.0.0.1"\nUser nobody', True),
                ('Match final host 127.0.0.1 exec "test %h = 127.0.0.1"\nHostKeyAlias far.example', False),
            )
        ),
    ],
)
def test_a_configuration_leads_where_it_leads_ssh(home: Home, server: SshServer, extra: str, *, gets_in: bool) -> None:
    config = str(home.path / ".ssh" / "config")
    assert log_in(home, server, known=server.known_line(), extra=extra.replace("CONFIG", config)) is gets_in
