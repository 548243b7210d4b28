"""Which processes belong to a worker, and how they are killed: its session, and every process with its origin.

A descendant that has left the session still has the names of its job and slot in the environment with which it was
started. So it is found anywhere. A descendant that has dropped this environment as well is found through its ancestors,
as long as they live. Only such processes are signalled, each through a pidfd and after a second look, so that another
process that got the same pid is never hit. Linux only; it imports little, since the watchdog imports it.

An origin is a path: `job/host` for all that an agent has started, `job/host/0.1` for the first worker in its slot 0.
The job of an hvdrun inside that worker is named `job/host/0.1/inner`, so that its processes belong to the worker.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rendezvous.bootstrap import INCARNATION, JOB, SLOT
from rendezvous.core.model import Slot, Worker

_PROC = Path("/proc")
_AFTER_NAME = 2  # the fields of /proc/PID/stat after the name in parentheses start with the third
_EXITING = 0x4  # the kernel's PF_EXITING
_JOB_ENTRY = f"{JOB}=".encode()
TRACKER_SECONDS = 1.0  # how long a resource tracker may take to end by itself, after its process was killed
_TRACKER = b"from multiprocessing.resource_tracker import main"
_STAT_BYTES = 4096  # more than the longest
_TOKEN_BYTES = 8  # of a job's name


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; pid and `started`, in clock ticks since boot, identify it.

    is_ending: it has ended, and the kernel closes its files; other processes may notice that before it can be reaped.
    """

    pid: int
    state: str
    parent: int
    session: int
    started: int
    is_ending: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, though it may not be reaped yet."""
        return self.state in "ZX"


def look(pid: int) -> Process | None:
    """The process that has this pid now; None where there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # a third of what a Path takes, thousands of times
        try:
            stat = os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(b")")[_AFTER_NAME].split()
    state = fields[0].decode()
    is_ending = bool(int(fields[6]) & _EXITING)
    return Process(pid, state, int(fields[1]), int(fields[3]), started=int(fields[19]), is_ending=is_ending)


def running() -> Iterator[Process]:
    """Every process that has not ended."""
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all that is wanted, many times a second
        if entry.isdecimal() and (process := look(int(entry))) is not None and not process.is_dead:
            yield process


def descendants(pid: int) -> Iterator[Process]:
    """The descendants of this process that have not ended, parents first; reads /proc for these alone."""
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            if (process := look(child)) is not None and not process.is_dead:
                yield process
                waiting.append(child)


def name_origin(environment: Mapping[str, str]) -> str | None:
    """The origin of a process with this environment; None when it belongs to no job."""
    job = environment.get(JOB)
    if job is None:
        return None
    try:
        worker = Worker(Slot.parse(environment[SLOT]), int(environment[INCARNATION]))
    except (KeyError, ValueError):  # another program uses these names
        return job
    return name_worker_origin(job, worker)


def name_job(environment: Mapping[str, str]) -> str:
    """A new name for a job of this process, which has this environment: inside a worker it is below the worker's."""
    around, token = name_origin(environment), os.urandom(_TOKEN_BYTES).hex()
    if around:
        return f"{around}/{token}"
    return token


def name_agent_origin(job: str, host: str) -> str:
    """The origin of all processes that a job's agent on a host has started."""
    return f"{job}/{host}"


def name_worker_origin(job: str, worker: Worker) -> str:
    """The origin of a worker, and of all processes that it starts."""
    return f"{name_agent_origin(job, worker.slot.host)}/{worker.slot.index}.{worker.incarnation}"


def read_origin(process: Process) -> str | None:
    """The origin in the environment with which a process was started; None when it belongs to no job."""
    try:
        data = (_PROC / str(process.pid) / "environ").read_bytes()
    except OSError:  # it ended meanwhile, or is another user's
        return None
    if _JOB_ENTRY not in data:
        return None
    entries = data.split(b"\0")
    return name_origin(dict(os.fsdecode(entry).partition("=")[::2] for entry in entries))


def name_outer_job(origin: str) -> str:
    """The job of an origin; of one inside a worker, the job of that worker."""
    return origin.partition("/")[0]


def cut_worker_origin(origin: str | None, agent_origin: str) -> str:
    """The origin of the worker to which an origin belongs; empty when it is of no worker of this agent."""
    lead = f"{agent_origin}/"
    if origin is None or not origin.startswith(lead):
        return ""
    return lead + origin.removeprefix(lead).partition("/")[0]


def find_own_start() -> int:
    """When this process was started; all processes that it starts are younger."""
    own = look(os.getpid())
    if own is None:
        return 0
    return own.started


def comes_from(process: Process, origin: str, since: int = 0) -> bool:
    """Whether the process has this origin, or one below it; False for a process that was started before `since`."""
    if process.started < since:
        return False
    found = read_origin(process)
    return found is not None and (found == origin or found.startswith(f"{origin}/"))


def is_running(process: Process) -> bool:
    """The process has not ended, though another one may have its pid now."""
    present = look(process.pid)
    return present is not None and present.started == process.started and not present.is_dead


def kill(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process, if it has not ended meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended meanwhile, or is another user's by now
        handle = _open_handle(process.pid)
        try:
            present = look(process.pid)
            if present is None or present.started != process.started:
                return
            if handle is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        finally:
            if handle is not None:
                os.close(handle)


class KillLoop:
    """Kills what each look finds, until several looks in a row find nothing, or the time is over.

    Python's resource tracker removes what its process leaves in /dev/shm, and then ends. So it is killed only later.

    Args:
        limit_seconds: a killed process may take long to end, and an uninterruptible one may never end.
        clean_looks: how many looks in a row must find nothing; during exec a process shows no environment.
    """

    def __init__(self, limit_seconds: float, clean_looks: int) -> None:
        began = time.monotonic()
        self._deadline = began + limit_seconds
        self._spare_until = began + TRACKER_SECONDS
        self._clean_looks = clean_looks
        self._looks = self._clean = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left, or what is left does not end."""
        is_over = self._looks >= self._clean_looks and time.monotonic() >= self._deadline
        return self._clean >= self._clean_looks or is_over

    def kill(self, found: Collection[Process] | None) -> None:
        """SIGKILL the processes that a look has found; None: the look has failed."""
        for process in found or ():
            if time.monotonic() >= self._spare_until or not is_resource_tracker(process):
                kill(process, signal.SIGKILL)
        self._looks += 1
        if found is not None and not found:
            self._clean += 1
        else:
            self._clean = 0


def is_resource_tracker(process: Process) -> bool:
    """Whether this is Python's resource tracker."""
    try:
        return _TRACKER in (_PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return False


def _open_handle(pid: int) -> int | None:
    """A pidfd; None where there are none: then the signal goes to the pid, right after the look.

    Pythons that were built on an old Linux have no pidfds, nor have Linux before 5.3 and some containers.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def _children(pid: int) -> Iterator[int]:
    """The children of all threads of a process; none where the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    threads = _PROC / str(pid) / "task"
    with contextlib.suppress(OSError):  # ended meanwhile
        for thread in os.listdir(threads):  # noqa: PTH208 - names are all that is wanted, many times a second
            with contextlib.suppress(OSError):  # this thread ended meanwhile
                yield from map(int, (threads / thread / "children").read_bytes().split())
