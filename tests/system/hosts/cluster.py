"""hvdrun on the launcher of a lab, and what a job leaves behind on any of its hosts."""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tests.lab.host import Host, Stream
from tests.lab.lab import Lab
from tests.lab.plan import HostPlan
from tests.system.launcher import LIMIT_SECONDS, Finished, Running

LEFT_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
_CLEAN_LOOKS = 2  # a process may be between fork and exec while one looks
_TORCH_S_OWN = "torchinductor_"  # a cache, which torch makes and keeps wherever a model is trained
_LISTENING = "0A"  # as the kernel writes the state in /proc/net/tcp


class BuildCluster(Protocol):
    """Builds a cluster that lasts until the test's end, and is looked over then."""

    def __call__(self, hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None) -> "Cluster":
        """See `tests.lab.lab.Lab`."""


class Cluster:
    """The hosts of a lab. Called like hvdrun, it runs that on the launcher, to its end.

    directory: where hvdrun runs, which all hosts see at the same path; a test puts its scripts there.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.directory = lab.shared
        self._started: list[Running] = []
        self._before = {host.name: frozenset(_list_traces(host)) for host in self._all()}

    def __call__(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        directory: Path | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> Finished:
        """Run hvdrun with these arguments to its end."""
        running = self.start(*arguments, environment=environment, stdin=stdin, directory=directory)
        return running.wait(limit_seconds)

    def start(
        self,
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        directory: Path | None = None,
    ) -> Running:
        """Start hvdrun with these arguments, and with these variables besides those of the launcher's user."""
        process = self.lab.launcher.start(
            ["hvdrun", *arguments], environment=environment, stdin=stdin, directory=directory or self.directory
        )
        running = Running(process)
        self._started.append(running)
        return running

    def __getitem__(self, name: str) -> Host:
        return self.lab[name]

    def write(self, name: str, text: str, *, mode: int = 0o644) -> Path:
        """Put a file into the directory."""
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def configure_ssh(self, text: str) -> None:
        """Write the launcher's ~/.ssh/config."""
        (self.lab.launcher.home / ".ssh" / "config").write_text(text, encoding="utf-8")

    def forget_host_keys(self) -> None:
        """Empty the launcher's ~/.ssh/known_hosts."""
        (self.lab.launcher.home / ".ssh" / "known_hosts").write_text("", encoding="utf-8")

    def find_left(self) -> tuple[str, ...]:
        """What is on the hosts that was not there before: processes, files in /tmp and /dev/shm, listeners."""
        return tuple(
            f"{host.name}: {trace}"
            for host in self._all()
            for trace in _list_traces(host)
            if trace not in self._before[host.name]
        )

    def settle(self, limit_seconds: float = LEFT_SECONDS) -> tuple[str, ...]:
        """What is still left after the limit; it returns as soon as nothing is."""
        deadline = time.monotonic() + limit_seconds
        clean_looks = 0
        while True:
            left = self.find_left()
            clean_looks = 0 if left else clean_looks + 1
            if clean_looks == _CLEAN_LOOKS or (left and time.monotonic() > deadline):
                return left
            time.sleep(_PAUSE_SECONDS)

    @property
    def has_running(self) -> bool:
        """An hvdrun that the test started has not been seen to end."""
        return any(running.is_running for running in self._started)

    def close(self) -> None:
        """End what the test has not ended."""
        for running in self._started:
            running.close()

    def _all(self) -> tuple[Host, ...]:
        """The hosts that are up, the launcher among them."""
        return tuple(host for host in (*self.lab, self.lab.launcher) if host.is_up)


def locate(host: Host, path: Path) -> Path:
    """Where the tests see what a host has at this absolute path."""
    return Path("/proc", str(host.pid), "root", path.relative_to("/"))


def _list_traces(host: Host) -> Iterator[str]:
    """All that a job could leave on a host."""
    for process in host.processes():
        yield str(process)
    for folder in (Path("/tmp"), Path("/dev/shm")):  # noqa: S108 - what is put there is what is looked for
        with contextlib.suppress(FileNotFoundError):
            for path in locate(host, folder).iterdir():
                if not path.name.startswith(_TORCH_S_OWN):
                    yield f"file {folder / path.name}"
    for kind in ("tcp", "tcp6"):
        lines = Path("/proc", str(host.pid), "net", kind).read_text(encoding="ascii").splitlines()[1:]
        for local, _, state in (line.split()[1:4] for line in lines):
            if state == _LISTENING:
                yield f"{kind} listener on port {int(local.rpartition(':')[2], 16)}"
