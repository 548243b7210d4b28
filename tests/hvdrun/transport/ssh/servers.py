"""Real OpenSSH servers on this machine's loopback, with test keys, and a home directory that knows them."""

import asyncio
import functools
import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hvdrun.errors import LaunchError
from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.dial import dial
from hvdrun.transport.ssh.target import Target, resolve_target
from tests.hvdrun.agent.sleepers import is_alive
from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS, wait_until

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
REQUIRED = os.environ.get("HVDRUN_REQUIRE_LAB", "0") not in {"", "0"}
needs_sshd = pytest.mark.skipif(
    SSHD is None and not REQUIRED, reason="no OpenSSH server here: apt-get install openssh-server"
)
USER = getpass.getuser()
LOGIN = """Host far near
 HostName 127.0.0.1
 Port {port}
 User {user}
 IdentityFile {key}
 UserKnownHostsFile {known_hosts}
 GlobalKnownHostsFile /dev/null
 StrictHostKeyChecking yes
 UpdateHostKeys no
"""


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair; the private half's file."""
    bits = ["-b", "2048"] if kind == "rsa" else []
    command = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def certify(authority: Path, key: Path, *options: str) -> Path:
    """Have an authority certify a key; the certificate's file, beside the key."""
    public = key.with_name(f"{key.name}.pub")
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "a test's", *options, str(public)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return key.with_name(f"{key.name}-cert.pub")


def read_public(key: Path) -> str:
    """Kind and key, without the comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text(encoding="utf-8").split()[:2])


def hold(*keys: Path) -> None:
    """Give keys to the ssh agent, and take their files away."""
    for key in keys:
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        key.unlink()


def write_ssh(folder: Path, config: Path) -> str:
    """A program `ssh` that reads this file as the user's, instead of the one in the account's home; its PATH."""
    if shutil.which("ssh") is None:
        pytest.skip("no OpenSSH client here: apt-get install openssh-client")
    folder.mkdir()
    script = folder / "ssh"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@dataclass
class SshServer:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    host_keys: dict[str, Path]
    authorized: Path

    def authorize(self, *keys: Path) -> None:
        """Let these keys in."""
        self.authorized.write_text("".join(f"{read_public(key)}\n" for key in keys), encoding="utf-8")

    def sessions(self) -> list[psutil.Process]:
        """A process for each connection."""
        return [child for child in psutil.Process(self.process.pid).children() if is_alive(child.pid)]

    def clear(self) -> None:
        """End the connections that are left, with all that they have started."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: self.sessions() == [], "the end of the connections")

    def known_line(self, kind: str = "ed25519") -> str:
        """What a known_hosts file has of it."""
        return f"[127.0.0.1]:{self.port} {read_public(self.host_keys[kind])}\n"


@functools.cache
def read_version() -> tuple[int, int]:
    """The server's."""
    said = subprocess.run([SSHD or "", "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@contextmanager
def serving(
    folder: Path,
    *,
    kinds: tuple[str, ...] = ("ed25519",),
    options: tuple[str, ...] = (),
    certify_host: Callable[[Path], Path] | None = None,
) -> Iterator[SshServer]:
    """A server that runs meanwhile; it shows certificates where they can be made."""
    with reserve_port() as port, serving_at(port, folder, kinds, options, certify_host) as server:
        yield server


@contextmanager
def serving_at(
    port: int,
    folder: Path,
    kinds: tuple[str, ...],
    options: tuple[str, ...],
    certify_host: Callable[[Path], Path] | None,
) -> Iterator[SshServer]:
    """The same, at this port."""
    assert SSHD is not None
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd, as root, locks itself in
    host_keys = {kind: make_key(folder / f"host_{kind}", kind) for kind in kinds}
    authorized = folder / "authorized"
    authorized.touch()
    lines = [
        *options,
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        *(f"HostKey {path}" for path in host_keys.values()),
        *(f"HostCertificate {certify_host(path)}" for path in host_keys.values() if certify_host is not None),
        f"AuthorizedKeysFile {authorized}",
        f"SetEnv HOME={folder}",  # the user's own .bashrc may be slow, or hold a lock when it is killed
        "PidFile none",
        "UsePAM no",
        "StrictModes no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "LogLevel VERBOSE",
        "MaxStartups 100",
        *(["PerSourcePenalties no"] if read_version() >= (9, 8) else []),  # many a test fails to log in
    ]
    config = folder / "sshd_config"
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    log = folder / "sshd.log"
    with log.open("wb") as errors, subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=errors) as process:
        try:
            _await_listening(process, log)
            yield SshServer(port, process, host_keys, authorized)
        finally:
            process.terminate()
            process.wait(60)


def _await_listening(process: subprocess.Popen[bytes], log: Path) -> None:
    while not re.search(r"Server listening", log.read_text(encoding="utf-8", errors="replace")):
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        raise RuntimeError(log.read_text(encoding="utf-8"))


@dataclass
class Home:
    """A user's home directory, and what ssh keeps there. `ssh` is that of `write_ssh`."""

    path: Path
    key: Path

    @property
    def known_hosts(self) -> Path:
        """The user's known_hosts file."""
        return self.path / ".ssh" / "known_hosts"

    def trust(self, *servers: SshServer) -> None:
        """Note the servers' keys."""
        self.known_hosts.write_text("".join(server.known_line() for server in servers), encoding="utf-8")

    @property
    def config(self) -> Path:
        """The user's ssh configuration."""
        return self.path / ".ssh" / "config"

    def configure(self, text: str = "") -> None:
        """Write the user's ssh configuration. Its end names the known_hosts file: ssh looks in the account's home."""
        own = f"Match all\n UserKnownHostsFile {self.known_hosts}\n GlobalKnownHostsFile none\n"
        self.config.write_text(f"{text}\n{own}", encoding="utf-8")

    def target(
        self,
        server: SshServer | None = None,
        *,
        host: str = "127.0.0.1",
        user: str | None = None,
        identity_file: Path | None = None,
        accept_new: bool = False,
    ) -> Target:
        """Where a name leads for this user."""
        return resolve_target(
            host,
            config=SshConfig(self.path),
            user=user,
            port=server.port if server is not None else None,
            identity_file=identity_file,
            accept_new=accept_new,
        )


def make_home(path: Path, key_pair: Path) -> Home:
    """A home with this key, under the default name."""
    folder = path / ".ssh"
    folder.mkdir(mode=0o700, parents=True)
    for half in (key_pair, key_pair.with_name(f"{key_pair.name}.pub")):
        shutil.copy(half, folder)
    home = Home(path, folder / key_pair.name)
    home.configure()
    return home


def reach(*targets: Target, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Log in to all of them together, and out."""

    async def log_in(target: Target) -> None:
        connection = await dial(target, limit_seconds)
        assert connection.client.is_authenticated()
        await in_thread(connection.close)

    async def scenario() -> None:
        await asyncio.gather(*map(log_in, targets))

    asyncio.run(scenario())


def log_in(home: Home, server: SshServer, *, extra: str = "", known: str = "", key: Path | None = None) -> bool:
    """Check that ssh and hvdrun agree whether the user can log in at the server; whether the user can.

    extra: more lines of the configuration; they count first. known: the known_hosts file.
    """
    words = {"port": server.port, "user": USER, "key": key or home.key, "known_hosts": home.known_hosts}
    home.configure(f"Host far\n{extra}\n{LOGIN.format(**words)}")
    home.known_hosts.write_text(known, encoding="utf-8")
    command = ["ssh", "-o", "BatchMode=yes", "far", "true"]
    theirs = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    home.known_hosts.write_text(known, encoding="utf-8")
    ours = ""
    try:
        reach(home.target(host="far"))
    except LaunchError as error:
        ours = str(error)
    assert (ours == "") is (theirs.returncode == 0), (ours, theirs.stderr)
    return not ours
