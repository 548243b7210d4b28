"""The guardian of a detached job: it starts the server of the job, and starts it again where it was killed.

The server, which is the launcher of other jobs, is its child. The guardian keeps what must outlive a server: its ports,
as sockets that are bound and do not listen. It holds nothing else of the job, and runs little code, so that little can
end it. A server that ends by itself ends the job. The next server runs the code that the guardian has loaded, whatever
has become of the files meanwhile.
"""

import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TypeAlias

from hvdrun.startup.process import end_process
from rendezvous.core.outcome import SIGNAL_OFFSET

MOST_DEATHS = 5
DEATHS_SECONDS = 60.0  # as many within this time end the job
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_BLOCKED = (*_PASSED_ON, signal.SIGCHLD)
_PAUSE_SECONDS = 0.1  # before a server is started again: what has killed it may kill several
_MESSAGE_BYTES = 16
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


@dataclass(frozen=True, slots=True)
class Life:
    """One server of a job, as it sees itself.

    number: from 1.
    killed_by: the signal that has ended the one before it; 0 for the first.
    line: to the guardian. It ends with the guardian.
    """

    number: int
    killed_by: int
    line: socket.socket

    def keep(self, port: socket.socket) -> None:
        """Have the guardian keep a bound socket, and so its port, until the job ends."""
        with suppress(OSError):  # the guardian was killed: nobody starts another server
            socket.send_fds(self.line, [b"p"], [port.fileno()])

    def is_alone(self) -> bool:
        """The guardian has gone."""
        try:
            return not self.line.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @staticmethod
    def answer_signals() -> None:
        """Receive the signals of the job from now on: those that came while there was no server wait for the next."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def guard(
    serve: Callable[[Life], int],
    note_crashes: Callable[[int, int], None],
    settle: Callable[[], None] = lambda: None,
    first: int = 1,
) -> int:
    """Run the servers of a job, one after the other, until one ends by itself; return its exit code.

    Args:
        serve: runs a server in a child of this process, and returns the exit code.
        note_crashes: called with how many servers were killed, and the last signal, where that ends the job.
        settle: called once, when the first server runs.
        first: the number of the first server; above 1 where others have been before this guardian.
    """
    guardian = _Guardian(settle)
    deaths: deque[float] = deque(maxlen=MOST_DEATHS)
    number, killed_by = first, 0
    with guardian.passing_on():
        while True:
            status = guardian.run(serve, number, killed_by)
            if not os.WIFSIGNALED(status):
                return os.waitstatus_to_exitcode(status)
            killed_by = os.WTERMSIG(status)
            if killed_by in _STOPPING:  # it came before the server could answer it
                return SIGNAL_OFFSET + killed_by
            deaths.append(time.monotonic())
            if len(deaths) == MOST_DEATHS and deaths[-1] - deaths[0] < DEATHS_SECONDS:
                note_crashes(number, killed_by)
                return SIGNAL_OFFSET + killed_by
            number += 1
            time.sleep(_PAUSE_SECONDS)


class _Guardian:
    """The present server, the ports, and the signals for it.

    Args:
        settle: called when the first server runs, which answers signals from its beginning.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle: Callable[[], None] | None = settle
        self._ports: list[int] = []
        self._server = 0  # its pid; 0 while there is none
        self._asked: dict[int, None] = {}  # the signals for the next server: a job that was asked to stop stays so
        self._wake, self._waker = os.pipe()
        for descriptor in (self._wake, self._waker):
            os.set_blocking(descriptor, False)
        self._former: dict[signal.Signals, Handler] = {}

    @contextmanager
    def passing_on(self) -> Iterator[None]:
        """Pass the signals of the job on to its server, and wake `run` when that has ended."""
        former: dict[signal.Signals, Handler] = {number: signal.signal(number, self._pass_on) for number in _PASSED_ON}
        former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._former = former
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in former.items():
                signal.signal(number, handler)

    def run(self, serve: Callable[[Life], int], number: int, killed_by: int) -> int:
        """Run a server to its end; return its status as waitpid does."""
        ours, theirs = socket.socketpair()
        kept = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self._server = os.fork()
            if not self._server:
                ours.close()
                self._serve(serve, Life(number, killed_by, theirs), kept)
            for each in tuple(self._asked):
                os.kill(self._server, each)
                if each not in _STOPPING:
                    del self._asked[each]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
        theirs.close()
        with ours:
            if self._settle is not None:
                self._settle()
                self._settle = None
            return self._watch(ours)

    def _serve(self, serve: Callable[[Life], int], life: Life, kept: set[int | signal.Signals]) -> NoReturn:
        """The child: be the server."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._wake, self._waker, *self._ports):
                os.close(descriptor)
            for number, handler in self._former.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, kept if self._settle else kept.union(_PASSED_ON))
            code = serve(life)
        finally:
            end_process(code)

    def _watch(self, line: socket.socket) -> int:
        """Keep the ports of the server until it has ended."""
        poller = select.poll()
        for each in (line, self._wake):
            poller.register(each, select.POLLIN)
        while True:
            ended, status = os.waitpid(self._server, os.WNOHANG)
            if ended:
                self._receive(line)
                self._server = 0
                return status
            for descriptor, _ in poller.poll():
                if descriptor == self._wake:
                    os.read(self._wake, _MESSAGE_BYTES)
                elif not self._receive(line):
                    poller.unregister(line)

    def _receive(self, line: socket.socket) -> bool:
        """Take the ports that have come; returns whether more may come."""
        while True:
            try:
                message, ports, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._ports += ports
            if not message:
                return False

    def _pass_on(self, number: int, _: object) -> None:
        is_running = self._server and os.waitid(os.P_PID, self._server, _LOOK) is None
        if is_running:
            os.kill(self._server, number)  # its pid stays its own until it is reaped
            if number in _STOPPING:
                os.kill(self._server, signal.SIGCONT)  # perhaps somebody has stopped it
        if number in _STOPPING or not is_running:
            self._asked[number] = None
