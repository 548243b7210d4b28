"""A worker and its agent: the worker ends with its agent, and the two report stops and failures to each other.

When the agent has gone, nothing reaches the worker any more. As a rule the guardian ends the workers of an agent that
was killed. Where both are killed, workers would wait for each other for ever, and hold what the next job needs. So a
thread waits for the agent's end; the kernel knows the process behind the agent's socket. An open connection would be
one more thing that forked children hold. The thread belongs to the process, and not to what `init()` makes: a worker
that hangs after `shutdown()` is to end as well.

A stop notice that comes to a worker is its host's: the worker passes the signal on to its agent, and decides nothing.
The sequencer reports a notice for the job to all ranks at the same place. A rank that is alone has no sequencer, and
looks for the file that its agent has made.

A worker whose program has failed reports that to the agent immediately: to end its process may take seconds. The others
continue without it, or are ended, from that moment on. A worker that has heard of the end of another before reports
nothing: that end is the cause, and may become known later than this one.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from worker_runtime.rendezvous import Bootstrap, RendezvousError, name_stop_file
from worker_runtime.startup.parent_process import read_start, wait_for_end
from worker_runtime.startup.program_end import ExitCode

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient


_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_RETRY_SECONDS = 0.1  # an agent listens a little later than it starts its first workers
_STDERR = 2
_EXIT_CODE = 75


class AgentWatch:
    """Ends this process with the agent that has started it, from the first call to that on.

    Args:
        connect: makes a client for such calls.
    """

    def __init__(self, connect: Callable[[Bootstrap], "WorkerClient"]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None

    def connect(self, bootstrap: Bootstrap) -> "WorkerClient":
        """A client of the rendezvous for this worker."""
        if self._thread is None:
            self._thread = threading.Thread(target=watch, args=(bootstrap,), name="hvd-agent-watch", daemon=True)
            self._thread.start()
        return self._connect(bootstrap)


def watch(bootstrap: Bootstrap) -> None:
    """Wait until the agent has gone, and end this process then; returns where the agent cannot be watched.

    An agent that is never heard of was killed before it listened; it has as long for that as the job has to start.
    """
    agent = find_listener(bootstrap.socket, bootstrap.start_timeout_seconds)
    if agent is None:
        reason = f"nobody has listened at {bootstrap.socket} for {bootstrap.start_timeout_seconds:g} s"
        end(f"the worker {bootstrap.worker} ends, since it has no agent: {reason}")
    if agent == 0:
        return
    has_ended = f"the worker {bootstrap.worker} ends, since its agent (process {agent}) has ended"
    try:
        session = os.getsid(agent)
    except ProcessLookupError:
        end(has_ended)
    wait_for_end(agent)
    end(has_ended, with_group=os.getsid(0) != session)


def find_listener(path: Path, patience_seconds: float) -> int | None:
    """Which process listens at a Unix socket; 0 for one that is hidden from here, None where none does in time."""
    deadline = time.monotonic() + patience_seconds
    while True:
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):
            caller.connect(str(path))
            credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(credentials)[0])
        if time.monotonic() > deadline:
            return None
        time.sleep(_RETRY_SECONDS)


def end(sentence: str, *, with_group: bool = False) -> NoReturn:
    """Print why, if standard error is still read, and end without delay.

    with_group: with all of the process group, in which a shell may wait for this worker before its next command.
    """
    hearing = select.poll()
    hearing.register(_STDERR, select.POLLOUT)
    with contextlib.suppress(OSError):
        if any(event & select.POLLOUT for _, event in hearing.poll(0)):  # else one could wait for ever
            os.write(_STDERR, f"hvdrun: {sentence}.\n".encode())
    if with_group:
        os.killpg(0, signal.SIGKILL)
    os._exit(_EXIT_CODE)


class StopNotice:
    """Of one process."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._has_handler = False

    def prepare(self, job: Bootstrap | None) -> None:
        """This process is a worker of that job; None for no job.

        A program that has a handler of SIGUSR2, or ignores it, keeps that; and so does one that sets it later.
        """
        self._file = None if job is None else name_stop_file(job.socket)
        is_main = threading.current_thread() is threading.main_thread()
        if job is None or self._has_handler or not is_main or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return
        agent = find_listener(job.socket, 0.0)
        if agent:  # else it is hidden from here
            signal.signal(signal.SIGUSR2, partial(_pass_on, agent, read_start(agent)))
            self._has_handler = True

    def has_come(self) -> bool:
        """A notice has come for the job, as far as this host knows."""
        return self._file is not None and self._file.exists()


def _pass_on(agent: int, started: bytes, *_: object) -> None:
    if started and read_start(agent) == started:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(agent, signal.SIGUSR2)


class FailureNotice:
    """Of one process.

    Args:
        connect: makes a client.
        follows_another: whether another worker's end was reported to this one.

    returncode: with which the program has failed; None where it has not, or that is not known.
    """

    def __init__(self, connect: Callable[[Bootstrap], "WorkerClient"], follows_another: Callable[[], bool]) -> None:
        self.returncode: int | None = None
        self._connect = connect
        self._follows_another = follows_another
        self._job: Bootstrap | None = None
        self._exit_code: ExitCode | None = None

    def prepare(self, job: Bootstrap | None) -> None:
        """This process is a worker of that job, and reports its failure from now on; None for no job."""
        self._job = job
        if job is not None and self._exit_code is None:
            self._exit_code = ExitCode()
            # Before any function of atexit, since those of the program may take long.
            with suppress(RuntimeError):  # where the program joins in one of these
                threading._register_atexit(self._tell)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else is called before

    def _tell(self) -> None:
        """The program has ended."""
        self.returncode = None if self._exit_code is None else self._exit_code.find_failure()
        if self.returncode is None or self._job is None or self._follows_another():
            return
        # Where the agent has gone, or does not answer in time, it sees the end of the process or nothing.
        with closing(self._connect(self._job)) as client, suppress(RendezvousError):
            client.fail(self.returncode)
