"""A lab's folder: the files that hosts are shown instead of the machine's own, their homes, and the keys of ssh.

It is locked as long as the lab's keeper lives, so that the next lab can recognise a stale one and remove it.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.lab.plan import HostPlan, list_names, plan_interfaces
from tests.lab.requirements import find_program
from tests.waiting import LIMIT_SECONDS

PREFIX = "hvdrun-lab-"
_LOCK = "lock"
_YOUNG_SECONDS = 60.0  # a folder without a lock may be another lab's, which is about to lock it
_LOCAL_NAMES = ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")
_NAME_SERVICE = "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"


class Folder:
    """The folder of one lab."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.path.chmod(0o755)
        self.key = make_key(self.path / "id_ed25519")

    def host(self, name: str) -> Path:
        """What belongs to one host."""
        return self.path / "hosts" / name

    def home(self, name: str) -> Path:
        """The home of a host's only user."""
        return self.host(name) / "home"

    def release(self) -> None:
        """Leave the lock to the keeper."""
        os.close(self.lock)

    def write(self, numbers: Mapping[str, tuple[HostPlan, int]]) -> None:
        """Write the files of these hosts, all of them; what a test has put into their homes besides stays."""
        for name in numbers:
            self._write_host(name)
        known = "".join(self._introduce(plan, number) for plan, number in numbers.values())
        lines = [*_LOCAL_NAMES, *(line for plan, number in numbers.values() for line in list_names(plan, number)), ""]
        for name in numbers:
            (self.host(name) / "hosts").write_text("\n".join(lines), encoding="utf-8")
            (self.home(name) / ".ssh" / "known_hosts").write_text(known, encoding="utf-8")

    def shown(self, name: str) -> list[tuple[str, str]]:
        """Which files a host is shown in place of others."""
        files = ("hosts", "hostname", "nsswitch.conf", "passwd", "shadow")
        return [(str(self.host(name) / file), f"/etc/{file}") for file in files if Path("/etc", file).exists()]

    def _write_host(self, name: str) -> None:
        host, home = self.host(name), self.home(name)
        if host.exists():
            return
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh").chmod(0o700)
        for key in (self.key, self.key.with_suffix(".pub")):
            shutil.copy(key, home / ".ssh" / key.name)
        shutil.copy(self.key.with_suffix(".pub"), host / "authorized_keys")
        make_key(host / "host_key")
        (host / "hostname").write_text(f"{name}\n", encoding="utf-8")
        (host / "nsswitch.conf").write_text(_NAME_SERVICE, encoding="utf-8")
        (host / "passwd").write_text(_rehome(home), encoding="utf-8")
        (host / "shadow").write_text("root:*:19000:0:99999:7:::\n", encoding="utf-8")  # no password, but not locked

    def _introduce(self, plan: HostPlan, number: int) -> str:
        """The lines of known_hosts for a host."""
        if plan.sshd is None:
            return ""
        key = (self.host(plan.name) / "host_key.pub").read_text(encoding="utf-8").rsplit(" ", 1)[0]
        addresses = [a for interface in plan_interfaces(plan, number) for a in interface.addresses.values()]
        return f"{','.join([plan.name, *addresses])} {key}\n"


def find_folders() -> list[Path]:
    """The folders of all labs of this machine."""
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def sweep() -> None:
    """Remove the folders of labs whose keeper was killed; nothing else of a lab outlives its keeper."""
    for path in find_folders():
        with contextlib.suppress(OSError):
            if _is_stale(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_stale(path: Path) -> bool:
    if path.stat().st_uid != os.geteuid():
        return False
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - path.stat().st_mtime > _YOUNG_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _rehome(home: Path) -> str:
    """The machine's users, root with this home."""
    lines = Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if not line.startswith("root:")]
    return "\n".join([f"root:x:0:0:root:{home}:/bin/bash", *others, ""])


def make_key(path: Path) -> Path:
    """A new key without a passphrase; its public half is beside it."""
    command: list[str | Path] = [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", path]
    subprocess.run(command, stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS, check=True)
    return path
