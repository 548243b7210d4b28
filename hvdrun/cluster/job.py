"""A job whose workers run functions, seen by the program that sends them: its launcher is a child of the program.

Nothing of the launcher runs in the program's own process, whose event loop, signals, threads and GPUs are its own. The
child leads a process group: a Ctrl-C at the terminal comes to the program, which hands it on. When the program ends, in
whatever way, the launcher reads the end of their connection, and ends the job.

In a notebook or under pytest the program's streams are not the descriptors 1 and 2. There the launcher writes into
pipes, which the program reads while it waits for the job, so that the output belongs to the cell or the test that has
called.
"""

import codecs
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from hvdrun.errors import LaunchError
from hvdrun.tasks.messages import Body, Delivered, Ended, EndTasks, Message, Refused, RunTask, receive, send

_CHUNK_BYTES = 64 * 1024


class Stream:
    """One of the program's streams, "stdout" or "stderr".

    writer: the descriptor to give to the launcher; closed by `let_go`.
    reader: what to read, where that is a pipe.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.reader: int | None = None
        self._inherits = _is_own_descriptor(name)
        self._is_open = not self._inherits
        if self._inherits:
            self.flush()
            self.writer = 1 if name == "stdout" else 2
            return
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def let_go(self) -> None:
        """The launcher has its end."""
        if self._is_open:
            self._is_open = False
            os.close(self.writer)

    def flush(self) -> None:
        """Let what the program has printed come before what the job prints from now on."""
        if self._inherits:
            getattr(sys, f"__{self._name}__").flush()

    def pump(self) -> None:
        """Print what has come."""
        while self.reader is not None:
            try:
                data = os.read(self.reader, _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._print(self._decode(data, not data))
            if not data:
                self.close()

    def close(self) -> None:
        """Read no more."""
        reader, self.reader = self.reader, None
        if reader is not None:
            os.close(reader)

    def _print(self, text: str) -> None:
        target: TextIO | None = getattr(sys, self._name)
        if target is not None and text:
            with suppress(ValueError):  # it is closed
                target.write(text)
                target.flush()


def _is_own_descriptor(name: str) -> bool:
    """The stream is that of the process itself."""
    stream, number = getattr(sys, name), 1 if name == "stdout" else 2
    if stream is None or stream is not getattr(sys, f"__{name}__"):
        return False
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError):
        return False


_EXIT_SECONDS = 10.0  # after its last message a launcher has nothing to do


class Job:
    """A running job; whoever has it calls `close`.

    words: the options and the command.
    environment: of the launcher.

    is_over: it has said how it ended, or has vanished.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self.is_over = False
        self._pending: list[Message] = []
        streams = [Stream("stdout"), Stream("stderr")]
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hvdrun.cluster", str(theirs.fileno()), str(self._owner), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=streams[0].writer,
                    stderr=streams[1].writer,
                    env=dict(environment),
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
        except OSError as error:
            self._connection.close()
            for stream in streams:
                stream.close()
            raise LaunchError(f"hvdrun's launcher could not be started: {error}") from error
        finally:
            for stream in streams:
                stream.let_go()
        self._streams = streams
        self._connection.setblocking(False)  # noqa: FBT003 - socket's signature

    def send(self, number: int, body: Body) -> None:
        """Have all workers run this function."""
        for stream in self._streams:
            stream.flush()
        self._say(RunTask(number, body))

    def finish(self) -> None:
        """No more functions come."""
        self._say(EndTasks())

    def messages(self, deadline: float | None = None) -> Iterator[Delivered | Ended | Refused | None]:
        """What the launcher says, as it comes, until it has ended; None once the deadline (monotonic) has passed.

        Ctrl-C while this waits ends the job, and then raises KeyboardInterrupt.
        """
        while not self.is_over:
            try:
                message = self._wait(deadline)
            except KeyboardInterrupt:
                self._interrupt()
                raise
            yield message
            if message is None:
                return

    def has_ended(self) -> bool:
        """Whether it has ended by itself, while no function ran."""
        next(self.messages(time.monotonic()), None)
        return self.is_over

    def close(self) -> None:
        """End the job, if it has not ended, and wait until nothing of it is left; a Ctrl-C meanwhile hurries it."""
        if os.getpid() != self._owner:  # a child that was forked has no part in this
            self._connection.close()
            return
        if not self.is_over:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self._drain()
        self._leave()

    def pump(self) -> None:
        """Print what has come."""
        for stream in self._streams:
            stream.pump()

    def _say(self, message: Message) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # its end is read
            send(self._connection, message)

    def _wait(self, deadline: float | None) -> Delivered | Ended | Refused | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            for stream in self._streams:
                if stream.reader is not None:
                    selector.register(stream.reader, selectors.EVENT_READ, stream)
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
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
        self.pump()  # what was printed before
        if isinstance(message, Delivered):
            return message
        self.is_over = True
        if isinstance(message, Ended | Refused):
            return message
        self._leave()
        returncode = self._process.returncode
        return Ended(succeeded=False, exit_code=returncode, reason=f"the launcher of the job ended ({returncode})")

    def _interrupt(self) -> None:
        """Hand a Ctrl-C on, and wait until the job has ended; each further one is handed on as well."""
        self._process.send_signal(signal.SIGINT)
        self._drain()

    def _drain(self) -> None:
        """Wait for the job's end, whatever it says."""
        while not self.is_over:
            try:
                message = self._wait(None)
                if isinstance(message, Delivered):
                    message.body.close()
            except KeyboardInterrupt:
                self._process.send_signal(signal.SIGINT)
        self._leave()

    def _leave(self) -> None:
        """The launcher has nothing more to say."""
        if self._connection.fileno() < 0:
            return
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.pump()
        for stream in self._streams:
            stream.close()
        self._connection.close()
