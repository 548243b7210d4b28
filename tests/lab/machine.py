"""What becomes of a new process when it is to be the first process of a host: its namespaces, mounts and interfaces.

Its end is the end of the host: the kernel ends all processes of a process-id namespace with the first.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import kernel
from tests.waiting import LIMIT_SECONDS

_NETWORK_SETTINGS = Path("/proc/sys/net/ipv6/conf")
_OWN = ("/tmp", "/dev/shm")  # noqa: S108 - mounted, each host's own
_RUN = Path("/run")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """How a host is made, in the terms of the kernel.

    shown: files that are shown in place of others, (source, target).
    shared: folders that stay visible where a mount of the host's own would hide them.
    """

    hostname: str
    shown: Sequence[tuple[str, str]]
    shared: Sequence[str]
    network: Sequence[str]


def leave() -> None:
    """Leave the namespaces of the process that forked this one; cables can be laid to it from here on."""
    kernel.die_with_parent(signal.SIGKILL)
    kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_HOSTNAME | kernel.NEW_NETWORK | kernel.NEW_IPC)


def settle(machine: Machine) -> None:
    """Make this process's surroundings those of the host."""
    socket.sethostname(machine.hostname)
    kernel.isolate_mounts()
    _mount(machine)
    for name in ("all", "default"):
        (_NETWORK_SETTINGS / name / "disable_ipv6").write_text("0", encoding="ascii")
        (_NETWORK_SETTINGS / name / "accept_dad").write_text("0", encoding="ascii")
    feed("ip", "-batch", "-", text="\n".join(machine.network))


def rest() -> None:
    """Live until killed; orphans are this process's, which waits for them: so what they have used is counted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def feed(*command: str, text: str) -> None:
    """Run a command on this input; raises OSError, with what it said, when it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    if done.returncode != 0:
        raise OSError(f"'{' '.join(command)}' failed: {done.stderr.strip()}, given:\n{text}")


def _mount(machine: Machine) -> None:
    """Each place is opened before mounts can hide it, and shown again where they did."""
    kept = {Path(path): os.open(path, os.O_PATH) for path in machine.shared}
    cgroups = os.open(_CGROUPS, os.O_PATH) if _CGROUPS.is_dir() else None
    for target in _OWN:
        kernel.mount_fresh("tmpfs", Path(target), "mode=1777")
    kernel.mount_fresh("tmpfs", _RUN, "mode=755")
    (_RUN / "sshd").mkdir()
    kernel.mount_fresh("proc", Path("/proc"))
    kernel.mount_fresh("sysfs", Path("/sys"), read_only=True)
    if cgroups is not None:
        kernel.bind(_through(cgroups), _CGROUPS)
    for path, descriptor in kept.items():
        if not path.exists():
            path.mkdir(parents=True)
            kernel.bind(_through(descriptor), path)
    for source, target in machine.shown:
        kernel.bind(Path(source), Path(target))


def _through(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")
