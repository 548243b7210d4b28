"""A worker and its agent: the worker exits with its agent, and both report stop notices and failures.

Usually the watchdog kills the workers of a killed agent. If both are killed, workers would wait for each other forever,
and keep the resources that the next job needs. So a thread waits for the end of the agent's process, whose pid the
kernel knows from the agent's socket. (An open connection would be inherited by forked children.) The thread lives as
long as the process, so that a worker that hangs after `shutdown()` exits too.

A stop notice for a worker is meant for its host: the worker forwards the signal to its agent. The sequencer reports a
notice for the job to all ranks at the same place. A single rank has no sequencer, and checks for the agent's file.

A worker whose program has failed reports that to the agent immediately, since its exit may take seconds. The other
workers then continue without it, or are stopped. A worker reports nothing if it already knows of another worker's
failure: that one is the cause, and may be reported later. A worker that fails because another one has ended with an
unknown code waits for that code: unless it is 0, the job stops this worker meanwhile, and blames the other one.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from worker_runtime.account import ACCOUNT
from worker_runtime.errors import OperationRefusedError, TooFewThreadsError
from worker_runtime.membership.blame import find_blame
from worker_runtime.rendezvous import Bootstrap, RendezvousError, count_startable, name_stop_file
from worker_runtime.startup.parent_process import read_start, wait_for_end
from worker_runtime.startup.program_end import UNKNOWN_END, ExitCode

if TYPE_CHECKING:
    from worker_runtime.rendezvous import WorkerClient


_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_RETRY_SECONDS = 0.1  # an agent starts its first workers shortly before it listens
_STDERR = 2
_THREADS = 16  # of gRPC, the backend and this package
_EXIT_CODE = 75


class AgentWatch:
    """Ends this process when its agent has ended, from the first `connect` on.

    Args:
        connect: creates a client of the rendezvous.
    """

    def __init__(self, connect: Callable[[Bootstrap], "WorkerClient"]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None

    def connect(self, bootstrap: Bootstrap) -> "WorkerClient":
        """Create a client of the rendezvous, and start to watch the agent.

        Raises:
            TooFewThreadsError: gRPC would end this process.
        """
        if self._thread is None:
            if (startable := count_startable(_THREADS)) < _THREADS:
                raise TooFewThreadsError(startable, _THREADS)
            self._thread = threading.Thread(target=watch, args=(bootstrap,), name="hvd-agent-watch", daemon=True)
            self._thread.start()
        return self._connect(bootstrap)


def watch(bootstrap: Bootstrap) -> None:
    """Wait until the agent has ended, then end this process. Returns if the agent cannot be watched.

    An agent that does not listen within the job's start timeout counts as killed.
    """
    agent = find_listener(bootstrap.socket, bootstrap.start_timeout_seconds)
    if agent is None:
        reason = f"no process has listened at {bootstrap.socket} for {bootstrap.start_timeout_seconds:g} s"
        end(f"the worker {bootstrap.worker} exits, since it has no agent: {reason}")
    if agent == 0:
        return
    has_ended = f"the worker {bootstrap.worker} exits, since its agent (process {agent}) has ended"
    try:
        session = os.getsid(agent)
    except ProcessLookupError:
        end(has_ended)
    wait_for_end(agent)
    end(has_ended, with_group=os.getsid(0) != session)


def find_listener(path: Path, patience_seconds: float) -> int | None:
    """The process that listens at a Unix socket; 0 if it is in another PID namespace, None if none listens in time."""
    deadline = time.monotonic() + patience_seconds
    while True:
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):  # nothing listens yet
            caller.settimeout(0)  # a suspended agent takes no more connections than its queue has
            caller.connect(str(path))
            credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(credentials)[0])
        if time.monotonic() > deadline:
            return None
        time.sleep(_RETRY_SECONDS)


def end(sentence: str, *, with_group: bool = False) -> NoReturn:
    """Print a message, unless standard error blocks, and end this process immediately.

    Args:
        sentence: the message.
        with_group: kill the whole process group, in which a shell may be waiting to run its next command.
    """
    hearing = select.poll()
    hearing.register(_STDERR, select.POLLOUT)
    with contextlib.suppress(OSError):  # nobody reads it, and this process ends
        # Without this the write could block forever.
        if any(event & select.POLLOUT for _, event in hearing.poll(0)):
            os.write(_STDERR, f"hvdrun: {sentence}.\n".encode())
    if with_group:
        os.killpg(0, signal.SIGKILL)
    os._exit(_EXIT_CODE)


class StopNotice:
    """The stop notice, as this process knows it."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._has_handler = False

    def prepare(self, job: Bootstrap | None) -> None:
        """Prepare for notices of a job; None for no job.

        This sets a handler of SIGUSR2, unless the program has set one, or ignores the signal.
        """
        if job is not None:
            self._file = name_stop_file(job.socket)
        else:
            self._file = None
        is_main = threading.current_thread() is threading.main_thread()
        if job is None or self._has_handler or not is_main or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return
        agent = find_listener(job.socket, 0.0)
        # The parent is 0 if the agent is in another PID namespace.
        if agent:
            signal.signal(signal.SIGUSR2, partial(_pass_on, agent, read_start(agent)))
            self._has_handler = True

    def has_come(self) -> bool:
        """Whether a notice for the job has reached this host."""
        return self._file is not None and self._file.exists()


def _pass_on(agent: int, started: bytes, *_: object) -> None:
    if started and read_start(agent) == started:
        with suppress(ProcessLookupError, PermissionError):  # it ended meanwhile
            os.kill(agent, signal.SIGUSR2)


class FailureNotice:
    """Reports the end of this process's program to the agent.

    Args:
        connect: creates a client of the rendezvous.
        follows_another: returns whether this worker knows of another worker's failure.
        await_departed: waits, for a limited time, until the agent knows of a worker that has exited with 0.

    returncode: the exit code of the failed program; None if it has not failed, or the code is unknown.
    place: where the program called `sys.exit()`, if that has ended it.
    """

    def __init__(
        self,
        connect: Callable[[Bootstrap], "WorkerClient"],
        follows_another: Callable[[], bool],
        await_departed: Callable[[Bootstrap], object],
    ) -> None:
        self.returncode: int | None = None
        self.place = ""
        self._connect = connect
        self._follows_another = follows_another
        self._await_departed = await_departed
        self._job: Bootstrap | None = None
        self._exit_code: ExitCode | None = None

    def prepare(self, job: Bootstrap | None) -> None:
        """Report the failure of this process to the agent of a job; None for no job."""
        self._job = job
        if job is not None and self._exit_code is None:
            self._exit_code = ExitCode()
            # Before all atexit functions, since those of the program may take long.
            with suppress(RuntimeError):  # raised if `init()` runs in an atexit function
                threading._register_atexit(self._report)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else runs before

    def _report(self) -> None:
        """Report the failure, or that the program has ended without one.

        After that hvdrun may stop this process while its exit hooks run: then that has not ended the program.
        """
        ACCOUNT.end()
        if self._exit_code is not None:
            self.returncode, self.place = self._exit_code.find_failure(), self._exit_code.place
        follows = self.returncode is not None and self._follows_another()
        blame = None if self.returncode is None else find_blame(getattr(sys, "last_value", None))
        if self._job is None or (follows and blame is None):
            return
        if self.returncode is not None and _follows_unknown_end():
            self._await_departed(self._job)
        with closing(self._connect(self._job)) as client, suppress(RendezvousError):  # the agent sees the process exit
            client.fail(self.returncode or 0, blame, follows=follows)


def _follows_unknown_end() -> bool:
    """Whether an uncaught exception has ended the program because another rank had ended, with an unknown exit code."""
    error = getattr(sys, "last_value", None)
    return isinstance(error, OperationRefusedError) and f" {UNKNOWN_END}, and " in str(error)
