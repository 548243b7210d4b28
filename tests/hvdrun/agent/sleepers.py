"""Processes that tests of the agent start in order to have something to find and to end; and what this one has open."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hvdrun.processes import processes
from hvdrun.processes.processes import Process
from tests.descriptors import list_descriptors, list_settled_descriptors
from tests.waiting import wait_until


@contextmanager
def sleeping(script: str = "", environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that leads a session; it runs `script` before it says that it lives, and sleeps."""
    command = ["sh", "-c", f"{script}\necho lives\nsleep 600\ntrue"]
    variables = {"PATH": os.environ["PATH"], **(environment or {})}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() != b"lives\n":
                assert process.poll() is None
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def hiding() -> Iterator[tuple[subprocess.Popen[bytes], list[Process]]]:
    """A process, and what is below it: a child that leads a session and has no environment, and that one's child."""
    script = "setsid env -i /bin/sh -c 'sleep 600; true' & exec sleep 600"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        hidden: list[Process] = []

        def are_hidden() -> bool:
            hidden[:] = processes.descendants(process.pid)
            return len(hidden) == 2 and all(child.session != process.pid and sheds(child) for child in hidden)

        try:
            wait_until(are_hidden)
            yield process, hidden
        finally:
            process.kill()
            for child in hidden:
                processes.kill(child, signal.SIGKILL)


def sheds(process: Process) -> bool:
    """Whether the process has not inherited the environment."""
    return b"PATH=" not in Path(f"/proc/{process.pid}/environ").read_bytes()


def is_alive(pid: int) -> bool:
    """The process has not ended; one that has, and was not reaped, is dead."""
    process = processes.look(pid)
    return process is not None and not process.is_dead


def find(pid: int) -> Process:
    process = processes.look(pid)
    assert process is not None
    return process


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process can open so many files more; in the end as many are open as before."""
    before = len(list_settled_descriptors())
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    for descriptor in opened:
        os.close(descriptor)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list_descriptors()) == before
