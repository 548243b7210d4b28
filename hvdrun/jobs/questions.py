"""How `hvdrun stacks`, `hvdrun ps` and others find the jobs of their user on this machine, and ask them.

Each hvdrun listens at a Unix socket in Linux's abstract namespace, whose name has the user and the job. Such a socket
has no file, and hvdrun leaves nothing behind, however it ends. Any user can take such a name, and can connect to it. So
each side asks the kernel for the other's user. A client sends a question, and reads one JSON document.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path

from hvdrun.processes.background import cancel_and_wait, start_task

_CREDENTIALS = struct.Struct("3i")  # the kernel's ucred: pid, uid, gid
_NAMES = Path("/proc/net/unix")
_NAME_COLUMN = 7
_CHUNK_BYTES = 64 * 1024
_QUESTION_BYTES = 64  # the longest
_QUESTION_SECONDS = 1.0  # a client that sends nothing in this time has no question


class Question(StrEnum):
    """What a client may ask."""

    RECORD = "record"  # what the job is
    STACKS = "stacks"  # where its ranks are
    NATIVE_STACKS = "native stacks"  # the same with frames of C and C++


def _name_socket(job: str) -> str:
    return f"hvdrun-job/{os.geteuid()}/{job}"


def _read_peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user of the process at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


class QuestionServer:
    """Answers the questions of its user; belongs to one event loop.

    Args:
        job: its name.
        answers: make the documents.
    """

    def __init__(self, job: str, answers: Mapping[Question, Callable[[], Awaitable[str]]]) -> None:
        self._job = job
        self._answers = answers
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen; on a system without such sockets nobody finds the job."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"\0{_name_socket(self._job)}")
            listener.listen()
        except OSError:
            listener.close()
            return
        listener.setblocking(False)  # noqa: FBT003 - socket's signature
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        self._listener = listener

    async def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await cancel_and_wait(self._tasks)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has gone, or no file can be opened
            connection, _ = listener.accept()
            task = start_task(self._respond(connection), "answer a question", self._tasks)
            task.add_done_callback(lambda _: connection.close())  # also if it never began

    async def _respond(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):  # the client has gone, or asks nothing
            connection.setblocking(False)  # noqa: FBT003 - socket's signature
            _, user = _read_peer(connection)
            if user not in {os.geteuid(), 0}:
                return
            async with asyncio.timeout(_QUESTION_SECONDS):
                asked = await loop.sock_recv(connection, _QUESTION_BYTES)
            for question, answer in self._answers.items():
                if asked == question.encode():
                    await loop.sock_sendall(connection, (await answer()).encode())


def list_jobs() -> list[str]:
    """The names of this user's jobs on this machine."""
    lead = f"@{_name_socket('')}"
    names = set()
    with contextlib.suppress(OSError):  # a system without this table
        for line in _NAMES.read_text(encoding="utf-8", errors="replace").splitlines():
            name = " ".join(line.split()[_NAME_COLUMN:])
            if name.startswith(lead):
                names.add(name.removeprefix(lead))
    return sorted(names)


def find_launcher(job: str) -> int | None:
    """The pid of the hvdrun of a job; None if it has ended, is another user's, or takes no connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, contextlib.suppress(OSError):  # it has ended
        connection.settimeout(0)  # a suspended one takes no more connections than its queue has
        connection.connect(f"\0{_name_socket(job)}")
        pid, user = _read_peer(connection)
        if user == os.geteuid():
            return pid
    return None


class SilentJobError(Exception):
    """A job does not answer; pid: of its hvdrun, 0 if that is not known."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}")
        self.pid = pid


def ask(job: str, question: Question, limit_seconds: float) -> str | None:
    """The document of a job; None if it has ended, or is another user's.

    Raises:
        SilentJobError: it does not answer in time.
    """
    pid = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_seconds)
        try:
            connection.connect(f"\0{_name_socket(job)}")
            pid, user = _read_peer(connection)
            if user != os.geteuid():
                return None
            connection.sendall(question.encode())
            chunks = []
            while chunk := connection.recv(_CHUNK_BYTES):
                chunks.append(chunk)
        except (TimeoutError, BlockingIOError):  # the latter of a full queue
            raise SilentJobError(pid) from None
        except OSError:
            return None
    return b"".join(chunks).decode() or None
