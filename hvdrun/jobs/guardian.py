"""The guardian of a detached job: it starts the server of the job, and starts it again where it was killed.

The server, which is the launcher of other jobs, is its child. The guardian keeps what must outlive a server: its ports,
as sockets that are bound and do not listen. It holds nothing else of the job, and runs little code, so that little can
end it. When a server that has taken over exits, the job ends. One that could not take over, as where no thread can be
started, is followed by another. The next server runs the code that the guardian has loaded, whatever has become of the
files meanwhile.
"""

import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import filterfalse
from types import FrameType
from typing import Any, NoReturn, TypeAlias

from hvdrun.errors import CANNOT_LAUNCH, LaunchError
from hvdrun.startup.early import STOPPING, has_foreign_handler
from hvdrun.startup.process import end_process
from rendezvous.core.messages import Level
from rendezvous.core.outcome import SIGNAL_OFFSET, name_signal

MOST_KILLS = 5
KILLS_SECONDS = 60.0  # MOST_KILLS within this time end the job
_PASSED_ON = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2)
_BLOCKED = (*_PASSED_ON, signal.SIGCHLD)
_PAUSE_SECONDS = 0.1  # before a server is started again: what has killed it may kill several
_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0  # after one that could not start; doubled each time
_PORT, _DECIDES_END = b"p", b"d"  # the messages of a server to the guardian
_MESSAGE_BYTES = 16

Say: TypeAlias = Callable[[str, Level], None]
Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


@dataclass(frozen=True, slots=True)
class Life:
    """One server of a job, as it sees itself.

    number: 1 for the first server of the job, more for any later one. `Term.number` counts all servers.
    killed_by: the signal that has killed the server before it; 0 where none was killed.
    line: to the guardian. It closes when the guardian ends.
    """

    number: int
    killed_by: int
    line: socket.socket

    def keep(self, port: socket.socket) -> None:
        """Have the guardian keep a bound socket, and so its port, until the job ends."""
        with suppress(OSError):  # the guardian was killed: nobody starts another server
            socket.send_fds(self.line, [_PORT], [port.fileno()])

    def is_alone(self) -> bool:
        """The guardian has gone."""
        try:
            return not self.line.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def decide_end(self) -> None:
        """Make the exit of this server the end of the job. Before this call another server follows one that fails."""
        with suppress(OSError):  # the guardian was killed: nobody starts another server
            self.line.send(_DECIDES_END)

    @staticmethod
    def answer_signals() -> None:
        """Unblock the signals of the job. Those that came while there was no server arrive now."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


@dataclass(frozen=True, slots=True)
class GuardEnd:
    """The end of the last server.

    code: its exit code.
    ends_job: the job ends with it; else another guardian can resume the job.
    reason: why no server has ended the job, a sentence; "" where one has.
    """

    code: int
    ends_job: bool = True
    reason: str = ""


def guard(
    serve: Callable[[Life], int],
    say: Say,
    after_first_start: Callable[[], None] = lambda: None,
    first: int = 1,
    patience_seconds: float = 0.0,
) -> GuardEnd:
    """Run the servers of a job, one after the other, until the job ends or none can be started.

    Args:
        serve: runs a server in a child of this process, and returns the exit code.
        say: called with a sentence about what becomes of the job, and how important it is.
        after_first_start: called once in this process, when the process of the first server runs.
        first: the number of the first server; above 1 where others have been before this guardian.
        patience_seconds: how long servers may fail to start, one after the other, before the job ends.

    Raises:
        LaunchError: there can be no process for the first server.
    """
    guardian = _Guardian(say, after_first_start)
    attempts = Attempts(say, patience_seconds)
    number, killed_by = first, 0
    with guardian.passing_on():
        while True:
            code = guardian.run(serve, number, killed_by)
            if code >= 0:
                if guardian.decides_end or number == 1:
                    return GuardEnd(code)
                if number == first:
                    return GuardEnd(code, ends_job=False)
                pause_seconds = attempts.note_failure(is_stopping=guardian.is_stopping)
            else:
                killed_by = -code
                code = SIGNAL_OFFSET + killed_by
                pause_seconds = attempts.note_kill(number, killed_by)
            if pause_seconds is None:
                return GuardEnd(code, reason=attempts.reason)
            number += 1
            guardian.wait(pause_seconds)


class Attempts:
    """Decides whether another server is started after one that was killed or could not start, and when.

    Args:
        say, patience_seconds: see `guard`.

    reason: why the job ends.
    """

    def __init__(self, say: Say, patience_seconds: float) -> None:
        self.reason = ""
        self._say = say
        self._patience_seconds = patience_seconds
        self._kills: deque[float] = deque(maxlen=MOST_KILLS)
        self._failing_since: float | None = None
        self._pause_seconds = 0.0

    def note_kill(self, number: int, killed_by: int) -> float | None:
        """Note that a signal has killed a server; returns the seconds until the next one, None if the job ends."""
        how = name_signal(killed_by)
        if killed_by in STOPPING:
            self.reason = f"{how} has ended the server of this job, which could not answer it yet."
            return None
        self._kills.append(time.monotonic())
        if len(self._kills) == MOST_KILLS and self._kills[-1] - self._kills[0] < KILLS_SECONDS:
            seconds = f"{KILLS_SECONDS:.0f} s"
            self.reason = (
                f"{number} servers of this job were killed within {seconds}, the last one by {how}: the job ends."
            )
            self._say(self.reason, Level.ERROR)
            return None
        self._failing_since = None
        return _PAUSE_SECONDS

    def note_failure(self, *, is_stopping: bool) -> float | None:
        """Note that a server could not start; returns the seconds until the next one, None if the job ends.

        Args:
            is_stopping: the job was asked to stop.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since, self._pause_seconds = now, _FIRST_PAUSE_SECONDS / 2
        if is_stopping or now - self._failing_since >= self._patience_seconds:
            self.reason = "no server of this job could be started: the job ends."
            self._say(self.reason, Level.ERROR)
            return None
        self._pause_seconds = min(2 * self._pause_seconds, _MOST_PAUSE_SECONDS)
        after = f"{self._pause_seconds:g} s"
        self._say(f"the job goes on without a server: another one is started in {after}.", Level.WARNING)
        return self._pause_seconds


class _Guardian:
    """The present server, the ports, and the signals for it.

    Args:
        say: see `guard`.
        after_first_start: see `guard`.

    decides_end: the end of the present server, or of the last one, is that of the job.
    """

    def __init__(self, say: Say, after_first_start: Callable[[], None]) -> None:
        self._say = say
        self._after_first_start: Callable[[], None] | None = after_first_start
        self.decides_end = False
        self._ports: list[int] = []
        self._server = 0  # its pid; 0 while there is none
        self._pending: dict[
            int, None
        ] = {}  # signals for the next server; one that stops the job is for all that follow
        self._wake, self._waker = os.pipe()
        for descriptor in (self._wake, self._waker):
            os.set_blocking(descriptor, False)
        self._former: dict[int, Handler] = {}

    @contextmanager
    def passing_on(self) -> Iterator[None]:
        """Pass the signals of the job on to its server, and wake `run` when that has ended."""
        numbers = filterfalse(has_foreign_handler, _PASSED_ON)
        former: dict[int, Handler] = {number: signal.signal(number, self._pass_on) for number in numbers}
        former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._former = former
        try:
            yield
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in former.items():
                signal.signal(number, handler)

    @property
    def is_stopping(self) -> bool:
        """The job was asked to stop."""
        return not self._pending.keys().isdisjoint(STOPPING)

    def wait(self, limit_seconds: float) -> None:
        """Wait so long, or until a signal for the job comes."""
        with suppress(BlockingIOError):  # what the server's end has left there was read
            os.read(self._wake, _MESSAGE_BYTES)
        if not self.is_stopping:
            select.select([self._wake], [], [], limit_seconds)

    def run(self, serve: Callable[[Life], int], number: int, killed_by: int) -> int:
        """Run a server to its end; return its exit code, or the negative number of the signal that has killed it.

        Raises:
            LaunchError: there can be no process for the first server.
        """
        self.decides_end = False
        try:
            return os.waitstatus_to_exitcode(self._run(serve, number, killed_by))
        except OSError as error:
            sentence = f"there can be no process for a server of this job: {error.strerror}"
            if self._after_first_start is not None:
                raise LaunchError(sentence) from error
            self._say(f"{sentence}.", Level.WARNING)
            return CANNOT_LAUNCH

    def _run(self, serve: Callable[[Life], int], number: int, killed_by: int) -> int:
        ours, theirs = socket.socketpair()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self._server = os.fork()
            if not self._server:
                ours.close()
                self._serve(serve, Life(number, killed_by, theirs), mask)
            for each in tuple(self._pending):
                os.kill(self._server, each)
                if each not in STOPPING:
                    del self._pending[each]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        with ours:
            if self._after_first_start is not None:
                self._after_first_start()
                self._after_first_start = None
            return self._watch(ours)

    def _serve(self, serve: Callable[[Life], int], life: Life, mask: set[int | signal.Signals]) -> NoReturn:
        """Be the server, in the child. The first one answers signals from its beginning, any other when it is ready."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._wake, self._waker, *self._ports):
                os.close(descriptor)
            for number, handler in self._former.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask if self._after_first_start else mask.union(_PASSED_ON))
            code = serve(life)
        except BaseException:  # noqa: BLE001 - the process ends before Python would print it
            traceback.print_exc()
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
        """Read the messages that have come; returns whether more may come."""
        while True:
            try:
                message, ports, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._ports += ports
            self.decides_end |= _DECIDES_END in message
            if not message:
                return False

    def _pass_on(self, number: int, _: object) -> None:
        is_running = self._server and not os.waitid(os.P_PID, self._server, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if is_running:
            os.kill(self._server, number)  # its pid stays its own until it is reaped
            if number in STOPPING:
                os.kill(self._server, signal.SIGCONT)  # perhaps somebody has stopped it
        if number in STOPPING or not is_running:
            self._pending[number] = None
