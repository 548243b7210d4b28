"""hvdrun on the launcher of a lab, and what a job leaves behind on any of its hosts."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

from tests.lab.fixtures import Build
from tests.lab.host import Host, Stream
from tests.lab.lab import Lab
from tests.system.launcher import PATIENCE, Finished, Running

# By hvdrun's own SSH, and by OpenSSH's program.
WAYS = pytest.mark.parametrize(
    "way", [(), pytest.param(("--rsh", "ssh"), marks=pytest.mark.nightly)], ids=["paramiko", "openssh"]
)
LEFT_SECONDS = 20.0  # what is left then does not end by itself
_PAUSE_SECONDS = 0.02
_CLEAN_LOOKS = 2  # in one look a process between fork and exec may be missing
_SSHD = re.compile(r": sshd|: \S*/sshd|listener on port")  # a listener of another process is reported with the process


class How(TypedDict, total=False):
    """How hvdrun is started.

    environment: variables besides those of the launcher's user.
    directory: where it runs, the cluster's own directory otherwise.
    forks: whether Python scripts are forked, as they are without --no-prefork: that imports torch on each host.
    """

    environment: Mapping[str, str]
    stdin: Stream
    directory: Path
    forks: bool


class Cluster:
    """The hosts of a lab. Called like hvdrun, it runs that on the launcher, to its end.

    directory: where hvdrun runs, which all hosts see at the same path; a test puts its scripts there.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.directory = lab.shared
        self._started: list[Running] = []
        self._before = {host.name: frozenset(host.list_traces()) for host in self._all()}

    def __call__(self, *arguments: str | Path, **how: Unpack[How]) -> Finished:
        """Run hvdrun with these arguments to its end."""
        return self.start(*arguments, **how).wait()

    def start(self, *arguments: str | Path, **how: Unpack[How]) -> Running:
        """Start hvdrun with these arguments."""
        words = () if how.get("forks", False) else ("--no-prefork",)
        how["environment"] = {**PATIENCE, **how.get("environment", {})}
        return self.start_on(self.lab.launcher, ["hvdrun", *words, *arguments], **how)

    def start_on(self, host: Host, command: Sequence[str | Path], **how: Unpack[How]) -> Running:
        """Start a command on a host."""
        process = host.start(
            command,
            environment=how.get("environment"),
            stdin=how.get("stdin", subprocess.DEVNULL),
            directory=how.get("directory", self.directory),
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

    def name_hosts(self, *lines: str) -> None:
        """Replace the file `hosts`, which a discovery script prints, at one stroke."""
        self.write("next", "".join(f"{line}\n" for line in lines)).replace(self.directory / "hosts")

    def configure_ssh(self, text: str) -> None:
        """Write the launcher's ~/.ssh/config."""
        (self.lab.launcher.home / ".ssh" / "config").write_text(text, encoding="utf-8")

    def find_left(self, *, with_sshd: bool = True) -> tuple[str, ...]:
        """What is on the hosts that was not there before: processes, files in /tmp and /dev/shm, listeners.

        with_sshd: whether sshd's own processes count, and the ports that they keep for a tunnel. On a host that is cut
            off they wait for a launcher that is gone. They end when the network is mended, or as sshd_config says.
        """
        return tuple(
            trace
            for host in self._all()
            for trace in (f"{host.name}: {one}" for one in host.list_traces() if one not in self._before[host.name])
            if with_sshd or not _SSHD.search(trace)
        )

    def settle(self, limit_seconds: float = LEFT_SECONDS, *, with_sshd: bool = True) -> tuple[str, ...]:
        """What is still left after the limit; it returns as soon as nothing is."""
        deadline = time.monotonic() + limit_seconds
        clean_looks = 0
        while True:
            left = self.find_left(with_sshd=with_sshd)
            clean_looks = 0 if left else clean_looks + 1
            if clean_looks == _CLEAN_LOOKS or (left and time.monotonic() > deadline):
                return left
            time.sleep(_PAUSE_SECONDS)

    def end_sessions(self) -> None:
        """Let sshd forget the connections that a cut has left, so that nothing of the test is left."""
        for host in self.lab:
            if host.is_up:
                host.network.mend()
                host.sshd.kill_sessions()

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


BuildCluster = Build[Cluster]
