"""Which processes are a worker's, and how they are ended: the session it leads, and whoever has its origin.

A descendant that has left the session still has, in the environment it was started with, the names of its job and its
slot; so it is found wherever it went. Only such processes are ever signalled, each through a pidfd and after a second
look, so that a process that took over a number is never hit. Linux only; light, because the guardian imports it.

An origin is a path: `job/host` of all that an agent has started, `job/host/0.1` of the first worker in its slot 0. The
job of an hvdrun that runs inside that worker is called `job/host/0.1/inner`, so whatever it starts is the worker's too.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rendezvous.bootstrap import INCARNATION, JOB, SLOT
from rendezvous.core.model import Slot, Worker

_PROC = Path("/proc")
_AFTER_NAME = 2  # the fields of /proc/PID/stat after the name in parentheses start with the third


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; `started` in clock ticks since boot makes it unique together with the pid."""

    pid: int
    state: str
    parent: int
    session: int
    started: int

    @property
    def is_dead(self) -> bool:
        """Ended, and at most waiting to be reaped."""
        return self.state in "ZX"


def look(pid: int) -> Process | None:
    """The process of this number now, if there is one."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[_AFTER_NAME].split()
    return Process(pid, state=fields[0], parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def running() -> Iterator[Process]:
    """Every process that has not ended."""
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all that is wanted, many times a second
        if entry.isdecimal() and (process := look(int(entry))) is not None and not process.is_dead:
            yield process


def name_origin(environment: Mapping[str, str]) -> str | None:
    """The origin of a process with this environment; None when it is from no job."""
    job = environment.get(JOB)
    if job is None:
        return None
    try:
        worker = Worker(Slot.parse(environment[SLOT]), int(environment[INCARNATION]))
    except (KeyError, ValueError):  # somebody else's idea of these names
        return job
    return name_worker_origin(job, worker)


def name_agent_origin(job: str, host: str) -> str:
    """The origin of all that a job's agent on a host has started."""
    return f"{job}/{host}"


def name_worker_origin(job: str, worker: Worker) -> str:
    """The origin of a worker, and of what it starts."""
    return f"{name_agent_origin(job, worker.slot.host)}/{worker.slot.index}.{worker.incarnation}"


def comes_from(process: Process, origin: str) -> bool:
    """The process, or one it descends from, was started there."""
    try:
        entries = (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False
    found = name_origin(dict(os.fsdecode(entry).partition("=")[::2] for entry in entries))
    return found is not None and (found == origin or found.startswith(f"{origin}/"))


def kill(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process; that it has ended meanwhile is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            present = look(process.pid)
            if present is not None and present.started == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill_all(belongs: Callable[[Process], bool]) -> int:
    """SIGKILL every process that belongs; how many there were. Call again until none is left."""
    doomed = [process for process in running() if process.pid != os.getpid() and belongs(process)]
    for process in doomed:
        kill(process, signal.SIGKILL)
    return len(doomed)
