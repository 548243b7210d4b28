"""A worker's watch over its agent: when that has gone, nobody can tell the worker anything any more, and it ends.

As a rule the guardian ends the workers of an agent that was killed. Where both are killed at once, workers would wait
for each other for ever, and hold what the next job needs.

Who the agent is, the kernel tells of its socket. A thread waits for the agent's end; an open connection would be one
more thing that forked children hold. The thread belongs to the process, and not to what `init()` makes: a worker that
hangs after `shutdown()` is to end as well.
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
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from worker_runtime.rendezvous import Bootstrap
from worker_runtime.startup.parent_process import wait_for_end

_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_RETRY_SECONDS = 0.1  # an agent listens a little later than it starts its first workers
_STDERR = 2
_EXIT_CODE = 75

ClientT = TypeVar("ClientT")


class AgentWatch(Generic[ClientT]):
    """Ends this process with the agent that has started it, from the first call to that on.

    Args:
        connect: makes a client for such calls.
    """

    def __init__(self, connect: Callable[[Bootstrap], ClientT]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None

    def connect(self, bootstrap: Bootstrap) -> ClientT:
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
    """Say why, if somebody can still hear it, and end without delay.

    with_group: with all of the process group, in which a shell may wait for this worker to go on with its next command.
    """
    hearing = select.poll()
    hearing.register(_STDERR, select.POLLOUT)
    with contextlib.suppress(OSError):
        if any(event & select.POLLOUT for _, event in hearing.poll(0)):  # else one could wait for ever
            os.write(_STDERR, f"hvdrun: {sentence}.\n".encode())
    if with_group:
        os.killpg(0, signal.SIGKILL)
    os._exit(_EXIT_CODE)
