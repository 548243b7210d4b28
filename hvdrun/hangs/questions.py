"""How `hvdrun stacks` finds the jobs of its user on this machine, and asks them.

Each hvdrun listens at a Unix socket without a file (in Linux's abstract namespace), whose name has the user and the
job. So it leaves nothing behind, however it ends. Each side asks the kernel for the other's user, since any user can
take such a name, and can connect to it. A client sends one byte, its question, and reads one JSON document.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from hvdrun.processes.background import cancel_and_wait, start_task

_CREDENTIALS = struct.Struct("3i")  # the kernel's ucred: pid, uid, gid
_NAMES = Path("/proc/net/unix")
_NAME_COLUMN = 7
_CHUNK_BYTES = 64 * 1024
_STACKS, _NATIVE_STACKS = b"s", b"n"
_QUESTION_SECONDS = 5.0


def _make_lead(user: int) -> str:
    return f"hvdrun-job/{user}/"


def _read_peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user of the process at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


class QuestionServer:
    """Answers `hvdrun stacks`; belongs to one event loop.

    Args:
        job: its name.
        answer: makes the document; `is_native`: with frames of C and C++.
    """

    def __init__(self, job: str, answer: Callable[..., Awaitable[str]]) -> None:
        self._job = job
        self._answer = answer
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen; on a system without such sockets `hvdrun stacks` finds no job."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"\0{_make_lead(os.geteuid())}{self._job}")
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
            task = start_task(self._respond(connection), "answer hvdrun stacks", self._tasks)
            task.add_done_callback(lambda _: connection.close())  # also if it never began

    async def _respond(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            connection.setblocking(False)  # noqa: FBT003 - socket's signature
            _, user = _read_peer(connection)
            if user not in {os.geteuid(), 0}:
                return
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(_QUESTION_SECONDS):
                question = await loop.sock_recv(connection, 1)
            document = await self._answer(is_native=question == _NATIVE_STACKS)
            await loop.sock_sendall(connection, document.encode())


def list_jobs() -> list[str]:
    """The names of this user's jobs on this machine."""
    lead = f"@{_make_lead(os.geteuid())}"
    names = set()
    with contextlib.suppress(OSError):  # a system without this table
        for line in _NAMES.read_text(encoding="utf-8", errors="replace").splitlines():
            name = " ".join(line.split()[_NAME_COLUMN:])
            if name.startswith(lead):
                names.add(name.removeprefix(lead))
    return sorted(names)


class SilentJobError(Exception):
    """A job does not answer; pid: of its hvdrun, 0 if that is not known."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}")
        self.pid = pid


def ask(job: str, limit_seconds: float, *, is_native: bool = False) -> str | None:
    """The document of a job; None if it has ended, or is another user's.

    is_native: with frames of C and C++.

    Raises:
        SilentJobError: it does not answer in time.
    """
    pid = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(limit_seconds)
        try:
            connection.connect(f"\0{_make_lead(os.geteuid())}{job}")
            pid, user = _read_peer(connection)
            if user != os.geteuid():
                return None
            connection.sendall(_NATIVE_STACKS if is_native else _STACKS)
            chunks = []
            while chunk := connection.recv(_CHUNK_BYTES):
                chunks.append(chunk)
        except TimeoutError:
            raise SilentJobError(pid) from None
        except OSError:
            return None
    return b"".join(chunks).decode() or None
