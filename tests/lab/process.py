"""The processes of a host, found by the network namespace that each is in, wherever they went."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import LIMIT_SECONDS

_PAUSE_SECONDS = 0.001
_MOST_LOOKS = 20
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of a host.

    pid: as the tests see it.
    pid_on_host: as programs on the host see it.
    program: the name of the file that it runs, "" for one that is ending.
    state: the kernel's letter: R, S, D, T (stopped), Z (ended, but not waited for).
    """

    pid: int
    pid_on_host: int
    program: str
    command: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.pid_on_host} on its host, {self.state}): {' '.join(self.command)}"


def find_processes(first: int) -> tuple[HostProcess, ...]:
    """All processes in the network namespace of this one, itself left out.

    A process that forks and ends while one looks hands its place to one that was not there when the look began: only
    two looks that agree count.
    """
    try:
        namespace = _name_network(first)
    except OSError:
        return ()
    before, now = None, _look(namespace)
    for _ in range(_MOST_LOOKS):
        if now == before:
            break
        before, now = now, _look(namespace)
    return tuple(_describe_all(sorted(now - {first})))


def wait_for_entry(process: "subprocess.Popen[bytes]", first: int) -> None:
    """Wait until a process that was started to enter a host has entered its network, or ended; raises TimeoutError."""
    namespace = _name_network(first)
    deadline = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and not _is_in(process.pid, namespace):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} has not entered its host within {LIMIT_SECONDS} s")
        time.sleep(_PAUSE_SECONDS)


def end(processes: Iterable[HostProcess], number: signal.Signals) -> None:
    """Signal them all, then wait until each has ended; raises TimeoutError."""
    descriptors = []
    with contextlib.ExitStack() as stack:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process.pid)
                stack.callback(os.close, descriptor)
                signal.pidfd_send_signal(descriptor, number)
                descriptors.append(descriptor)
        deadline = time.monotonic() + LIMIT_SECONDS
        while descriptors:
            ended = select.select(descriptors, [], [], max(deadline - time.monotonic(), 0))[0]
            if not ended:
                raise TimeoutError(f"{len(descriptors)} processes continue {LIMIT_SECONDS} s after {number.name}")
            descriptors = [descriptor for descriptor in descriptors if descriptor not in ended]


def _name_network(pid: int) -> str:
    return str((_PROC / str(pid) / "ns" / "net").readlink())


def _look(namespace: str) -> set[int]:
    pids = (int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    return {pid for pid in pids if _is_in(pid, namespace)}


def _is_in(pid: int, namespace: str) -> bool:
    try:
        return _name_network(pid) == namespace
    except OSError:  # ended
        return False


def _describe_all(pids: Iterable[int]) -> Iterator[HostProcess]:
    for pid in pids:
        with contextlib.suppress(OSError, KeyError, IndexError):  # ended while one looks
            yield _describe(pid)


def _describe(pid: int) -> HostProcess:
    folder = _PROC / str(pid)
    lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    command = (folder / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    program = ""
    with contextlib.suppress(OSError):
        program = (folder / "exe").readlink().name
    return HostProcess(
        pid=pid,
        pid_on_host=int(status["NSpid"].split()[-1]),
        program=program,
        command=tuple(command) or (f"[{status['Name']}]",),
        state=status["State"][0],
    )
