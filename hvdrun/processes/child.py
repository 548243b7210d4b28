"""Child processes: how each is started, how its end is noticed, and the file that takes its last words.

An agent is a child subreaper: every orphan of its workers becomes its child. So one object reaps all children, and no
part of the agent waits for its own.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Self

from hvdrun.processes import processes

StandardStreams = tuple[int, int, int]  # the descriptors of standard input, output and error
Start = Callable[[StandardStreams], Awaitable[int]]

_KIB = 1024
_TAIL_BYTES = 16 * _KIB
_PR_SET_CHILD_SUBREAPER = 36


def start_child(
    command: Sequence[str],
    streams: StandardStreams,
    *,
    directory: str,
    environment: Mapping[bytes, bytes],
    executable: str | None = None,
    descriptors: Sequence[int] = (),
) -> int:
    """Start a process that leads a new session; returns its pid.

    Args:
        command: the program and its arguments.
        streams: its standard streams; the caller keeps these descriptors.
        directory: its working directory.
        environment: its whole environment.
        executable: the file; None: the first word of the command.
        descriptors: further descriptors that it inherits, under the same numbers.

    Raises:
        OSError: it cannot be started.
    """
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        command,
        executable=executable,
        cwd=directory,
        env=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=descriptors,
        start_new_session=True,
    )
    process.returncode = 0  # `Children` reaps it: Popen must not wait for it
    return process.pid


def open_pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe, each end of which one of these stacks closes."""
    ends = os.pipe()
    reading.callback(os.close, ends[0])
    writing.callback(os.close, ends[1])
    return ends


def kill_child(pid: int) -> bool:
    """SIGKILL a child of this process; returns False where no child has this pid, or it was reaped."""
    process = processes.look(pid)
    if process is None or process.parent != os.getpid():
        return False
    processes.kill(process, signal.SIGKILL)
    return True


class Children:
    """Reaps all children of this process, orphans of its descendants included; belongs to one event loop.

    peak_bytes: how much memory the child whose end is reported now has had resident at most.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._watched: dict[int, Callable[[int], None]] = {}
        self._starts = 0
        self._early: dict[int, int] = {}  # exit codes of children that ended before the caller knew their pids

    def open(self) -> None:
        """Adopt orphans, and reap from now on."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._reap()

    def close(self) -> None:
        """Stop reaping."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Keep the ends of unknown children meanwhile: one of them may be the child that the caller is starting."""
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._early.clear()

    def watch(self, pid: int, note_end: Callable[[int], None]) -> None:
        """Call `note_end` with the exit code of this child when it has ended; immediately if it has.

        The exit code is negative for a signal, as in `subprocess`.
        """
        if pid in self._early:
            note_end(self._early.pop(pid))
        else:
            self._watched[pid] = note_end

    def forget(self, pid: int) -> None:
        """Report the end of this child to nobody."""
        self._watched.pop(pid, None)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:  # no child is left
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self.peak_bytes = used.ru_maxrss * _KIB
            note_end = self._watched.pop(pid, None)
            if note_end is not None:
                note_end(code)
            elif self._starts:
                self._early[pid] = code


def last_line(output: bytes) -> str:
    """The last line of what a child wrote; "" when there is none."""
    return output.decode(errors="replace").strip().rpartition("\n")[2].strip()


class OutputFile:
    """Takes what a child writes: in a pipe that nobody reads, a child that writes much would block.

    The file has no name, and is on the disk: some Pythons cannot create one in memory.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in close()
        self._tail = b""  # once the file is closed

    def fileno(self) -> int:
        """The descriptor to start the child with; this object keeps it."""
        return self._file.fileno()

    def read_last_line(self) -> str:
        """The last line that was written until this object was closed; "" when there is none."""
        return last_line(self.read_tail())

    def close(self) -> None:
        """Close the descriptor; the child keeps its own."""
        self._tail = self.read_tail()
        self._file.close()

    def read_tail(self) -> bytes:
        """The end of what was written until this object was closed."""
        if self._file.closed:
            return self._tail
        size = os.fstat(self.fileno()).st_size
        return os.pread(self.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))


class Child:
    """A child with a pipe to its standard input, one from its standard output, and a file for its standard error.

    Args:
        stdin: the parent's end of the pipe to standard input.
        stdout: the parent's end of the other pipe.
        errors: the file of standard error.

    pid: 0 until it is known.
    """

    def __init__(self, stdin: int, stdout: int, errors: OutputFile) -> None:
        self.pid = 0
        self._stdin = stdin
        self._errors = errors
        self._output = os.fdopen(stdout, "rb", buffering=0)
        self._transport: asyncio.ReadTransport | None = None
        os.set_blocking(stdin, False)

    @classmethod
    async def start(cls, start: Start) -> Self:
        """Start a child; `start` takes its standard streams, which this method closes, and returns its pid.

        Raises:
            Exception: what `start` raised; no descriptor is left open then.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            reading, stdin = open_pipe(theirs, ours)
            stdout, writing = open_pipe(ours, theirs)
            errors = OutputFile()
            ours.callback(errors.close)
            child = cls(stdin, stdout, errors)
            ours.pop_all()
            try:
                child.pid = await start((reading, writing, errors.fileno()))
            except BaseException:
                child.close()
                raise
        return child

    async def open_reader(self) -> asyncio.StreamReader:
        """The child's standard output; to be called once."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._output)
        return reader

    def write(self, data: bytes) -> None:
        """Write to its standard input without waiting.

        Raises:
            OSError: it has ended, or the pipe is full.
        """
        os.write(self._stdin, data)

    def read_last_line(self) -> str:
        """The last line of its standard error; "" when there is none."""
        return self._errors.read_last_line()

    def kill(self) -> None:
        """SIGKILL it, if it was not reaped."""
        kill_child(self.pid)

    def close(self) -> None:
        """Close the descriptors; a child that reads its standard input ends then."""
        if self._transport is not None:
            self._transport.close()
        self._output.close()
        os.close(self._stdin)
        self._errors.close()
