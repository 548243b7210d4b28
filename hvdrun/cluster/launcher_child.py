"""The program's part in a job whose workers run functions: the job's launcher is a child of the program.

The launcher leaves the program's event loop, signals, threads and GPUs alone. It leads a process group: a Ctrl-C at the
terminal reaches the program alone, which passes it on. When the program ends for any reason, the launcher reads the end
of their connection, and ends the job.

In a notebook or under pytest the program's streams are not the descriptors 1 and 2. There the launcher writes into
pipes, which the program reads while it waits for the job, so that the output appears in the cell or the test that
waits.
"""

import codecs
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO

from hvdrun.errors import LaunchError
from hvdrun.tasks.messages import Body, Delivered, Ended, EndTasks, Message, Refused, RunTask, receive, send

_CHUNK_BYTES = 64 * 1024


class Stream:
    """One of the program's streams, "stdout" or "stderr".

    Args:
        name: "stdout" or "stderr".

    writer: the descriptor for the launcher; `close_writer` closes it.
    reader: the other end, if `writer` is a pipe.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.reader: int | None = None
        self._inherits = _is_own_descriptor(name)
        self._is_open = not self._inherits
        if self._inherits:
            self.flush()
            self.writer = 2
            if name == "stdout":
                self.writer = 1
            return
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def close_writer(self) -> None:
        """Close the descriptor for the launcher, which has a copy."""
        if self._is_open:
            self._is_open = False
            os.close(self.writer)

    def flush(self) -> None:
        """Flush the program's output, so that it comes before the job's."""
        if self._inherits:
            getattr(sys, f"__{self._name}__").flush()

    def pump(self) -> None:
        """Print the output that has come."""
        while self.reader is not None:
            try:
                data = os.read(self.reader, _CHUNK_BYTES)
            except BlockingIOError:  # no more has come yet
                return
            self._print(self._decode(data, not data))
            if not data:
                self.close()

    def close(self) -> None:
        """Close the reading end."""
        reader, self.reader = self.reader, None
        if reader is not None:
            os.close(reader)

    def _print(self, text: str) -> None:
        target: TextIO | None = getattr(sys, self._name)
        if target is not None and text:
            with suppress(ValueError):  # the stream is closed
                target.write(text)
                target.flush()


def _read_outcome(body: Body | None) -> dict[str, Any] | None:
    if body is None:
        return None
    outcome: dict[str, Any] = json.loads(b"".join(body.pieces()) or b"null")
    body.close()
    return outcome


def _is_own_descriptor(name: str) -> bool:
    """The stream is the process' own standard output or error."""
    stream, number = getattr(sys, name), {"stdout": 1, "stderr": 2}[name]
    if stream is None or stream is not getattr(sys, f"__{name}__"):
        return False
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError):
        return False


def is_watched() -> bool:
    """A person reads what this program prints: on a terminal, or in a notebook."""
    stream, ipython = sys.stderr, sys.modules.get("IPython")
    with suppress(ValueError):  # the stream is closed
        if stream is not None and stream.isatty():
            return True
    return ipython is not None and ipython.get_ipython() is not None


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Let Ctrl-C wait in this thread."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_END_SECONDS = 60.0  # for the job's end, beside its workers' grace
_EXIT_SECONDS = 10.0  # for the launcher's exit after its last message, or after SIGKILL


class LauncherChild:
    """The launcher of a running job, a child process; its owner calls `close`.

    Args:
        words: the options and the command.
        environment: the environment of the launcher.
        grace_seconds: the workers'.

    is_over: the launcher has reported the job's end, or has died.
    outcome: what --outcome writes, from the job's end on; None where it is not known.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], grace_seconds: float = 0.0) -> None:
        self._end_seconds = grace_seconds + _END_SECONDS
        self._owner = os.getpid()
        self.is_over = False
        self.outcome: dict[str, Any] | None = None
        self._streams: list[Stream] = []

        try:
            with ExitStack() as ours, ExitStack() as theirs:
                for name in ("stdout", "stderr"):
                    stream = Stream(name)
                    ours.callback(stream.close)
                    theirs.callback(stream.close_writer)
                    self._streams.append(stream)
                self._connection, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.enter_context(self._connection)
                theirs.enter_context(end)

                numbers = (end.fileno(), self._owner, int(is_watched()))
                with _ctrl_c_blocked():  # the launcher inherits that, and is silent when it comes during its imports
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", "hvdrun.cluster", *map(str, numbers), *words],
                        stdin=subprocess.DEVNULL,
                        stdout=self._streams[0].writer,
                        stderr=self._streams[1].writer,
                        env=dict(environment),
                        pass_fds=(end.fileno(),),
                        process_group=0,
                    )
                ours.pop_all()
        except OSError as error:
            raise LaunchError(f"hvdrun's launcher could not be started: {error}") from error

        self._connection.setblocking(False)  # noqa: FBT003 - socket's signature

    @property
    def is_own(self) -> bool:
        """This process has started it, and is not a forked child of that one."""
        return os.getpid() == self._owner

    def send(self, number: int, body: Body) -> None:
        """Run this function on all workers."""
        for stream in self._streams:
            stream.flush()
        self._send(RunTask(number, body))

    def finish(self) -> None:
        """Tell the launcher that no more functions follow."""
        self._send(EndTasks())

    def messages(self, deadline: float | None = None) -> Iterator[Delivered | Ended | Refused | None]:
        """The launcher's messages until the job's end; None when the deadline, on the monotonic clock, has passed.

        Ctrl-C while this waits ends the job, and then raises KeyboardInterrupt.
        """
        while not self.is_over:
            try:
                message = self._wait(deadline)
            except KeyboardInterrupt:
                self._process.send_signal(signal.SIGINT)
                self._drain()
                raise
            yield message
            if message is None:
                return

    def has_ended(self) -> bool:
        """The job has ended by itself, while no function ran."""
        next(self.messages(time.monotonic()), None)
        return self.is_over

    def close(self) -> None:
        """End the job, if it has not ended, and wait for its launcher; a Ctrl-C while this waits ends it faster."""
        if not self.is_own:
            self._connection.close()
            return
        if not self.is_over:
            with suppress(OSError):  # the launcher has ended
                self._connection.shutdown(socket.SHUT_WR)
            self._drain()
        self._reap()

    def pump(self) -> None:
        """Print the output that has come."""
        for stream in self._streams:
            stream.pump()

    def _send(self, message: Message) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `_take` reads the end
            send(self._connection, message)

    def _wait(self, deadline: float | None) -> Delivered | Ended | Refused | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            for stream in self._streams:
                if stream.reader is not None:
                    selector.register(stream.reader, selectors.EVENT_READ, stream)

            while True:
                left = None
                if deadline is not None:
                    left = max(0.0, deadline - time.monotonic())
                ready = [key for key, _ in selector.select(left)]
                if not ready and deadline is not None and time.monotonic() >= deadline:
                    return None

                for key in ready:
                    if isinstance(key.data, Stream):
                        reader = key.fd
                        key.data.pump()
                        if key.data.reader is None:
                            selector.unregister(reader)
                if any(key.fileobj is self._connection for key in ready):
                    return self._take()

    def _take(self) -> Delivered | Ended | Refused:
        message = receive(self._connection)
        self.pump()  # the output before the message
        if isinstance(message, Delivered):
            return message
        self.is_over = True
        if isinstance(message, Ended | Refused):
            self.outcome = _read_outcome(message.body)
            return message
        self._reap()
        returncode = self._process.returncode
        return Ended(succeeded=False, exit_code=returncode, reason=f"the launcher of the job ended ({returncode})")

    def _drain(self) -> None:
        """Wait for the job's end, without regard to its messages; kill a launcher that does not end it in time.

        Pass each Ctrl-C on meanwhile.
        """
        deadline = time.monotonic() + self._end_seconds
        while not self.is_over:
            try:
                message = self._wait(deadline)
                self.is_over |= message is None  # the deadline has passed: `_reap` kills the launcher
                if isinstance(message, Delivered):
                    message.body.close()
            except KeyboardInterrupt:
                self._process.send_signal(signal.SIGINT)
        self._reap()

    def _reap(self) -> None:
        """Wait for the launcher's exit, and close all descriptors."""
        if self._connection.fileno() < 0:
            return
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel ends it later
                self._process.wait(_EXIT_SECONDS)
        self.pump()
        for stream in self._streams:
            stream.close()
        self._connection.close()
