"""The messages between a program that runs functions and the launcher of its job, over a socket pair.

One message is one packet. A small function or result is part of the message. A larger one is in a file without a name,
whose descriptor is sent with the message: the kernel removes the file when no process has it open.
"""

import errno
import io
import os
import pickle
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import BinaryIO

from rendezvous.wire.tasks import PIECE_BYTES

INLINE_BYTES = 32 * 1024
_PACKET_BYTES = 128 * 1024  # less than the kernel's limit for a packet


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes in memory, or, if `data` is None, in a file. Its owner closes it."""

    data: bytes | None
    descriptor: int | None = None

    @classmethod
    def of(cls, file: BinaryIO) -> "Body":
        """The bytes of a file, which stays the caller's. A long one needs a descriptor."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= INLINE_BYTES:
            return cls(file.read())
        file.flush()
        return cls(None, os.dup(file.fileno()))

    @classmethod
    def of_bytes(cls, data: bytes) -> "Body":
        """These bytes.

        Raises:
            OSError: this machine has no room for them.
        """
        if len(data) <= INLINE_BYTES:
            return cls(data)
        with TemporaryFile(prefix="hvdrun-") as file:
            file.write(data)
            return cls.of(file)

    def pieces(self) -> Iterator[bytes]:
        """The bytes, piece by piece, from the beginning; several readers may read at the same time."""
        if self.data is not None:
            yield self.data
            return
        assert self.descriptor is not None  # noqa: S101 - for mypy: there is one where there are no data
        position = 0
        while piece := os.pread(self.descriptor, PIECE_BYTES, position):
            position += len(piece)
            yield piece

    def open(self) -> BinaryIO:
        """The bytes as a file, which is the caller's; the body stays open."""
        if self.descriptor is None:
            return io.BytesIO(self.data or b"")
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self.descriptor), "rb")

    def close(self) -> None:
        """Close the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)


async def collect(pieces: AsyncIterator[bytes], size: int) -> Body | None:
    """A body of `size` bytes from its pieces; None if their size is another.

    Raises:
        OSError: this machine has no room for them.
    """
    if size <= INLINE_BYTES:
        data = b"".join([piece async for piece in pieces])
        if len(data) == size:
            return Body(data)
        return None
    with TemporaryFile(prefix="hvdrun-") as file:
        async for piece in pieces:
            file.write(piece)
        if file.tell() == size:
            return Body.of(file)
        return None


@dataclass(frozen=True, slots=True)
class RunTask:
    """To the launcher: all workers run this function. A `rendezvous.wire.tasks.Task`."""

    number: int
    body: Body = field(repr=False)

    def pieces(self) -> Iterator[bytes]:
        """See `Task`."""
        return self.body.pieces()


@dataclass(frozen=True, slots=True)
class EndTasks:
    """To the launcher: no more functions follow; the workers end after those that were sent."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """To the program: the outcome of a function on one worker; see `rendezvous.wire.tasks.OutcomeHead`."""

    rank: int
    number: int
    failed: bool
    follows_another: bool
    body: Body = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """To the program: the job has ended; the last message.

    succeeded: the exit code is 0.
    reason: one sentence.
    rank, returncode, last_lines: those of the worker that failed first, if one did; a
    negative returncode is a signal.
    begun: the number of the last function that a worker has got; 0 for none.
    body: what --outcome writes; None where this machine has no room for it.
    """

    succeeded: bool
    exit_code: int
    reason: str
    rank: int | None = None
    returncode: int | None = None
    last_lines: tuple[str, ...] = ()
    begun: int = 0
    body: Body | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """To the program: the job could not be launched; the last message.

    lines: the message, and the lines below it.
    body: what --outcome writes; None where there was no job yet.
    """

    lines: tuple[str, ...]
    exit_code: int
    body: Body | None = field(default=None, repr=False)


Message = RunTask | EndTasks | Delivered | Ended | Refused


def send(connection: socket.socket, message: Message) -> None:
    """Send one message, and close its body.

    Raises:
        BlockingIOError: the other side has to read first; the body stays open.
        OSError: the other side has closed the connection.
    """
    body = None
    if not isinstance(message, EndTasks):
        body = message.body
    descriptors = []
    if not (body is None or body.descriptor is None):
        descriptors = [body.descriptor]
    socket.send_fds(connection, [pickle.dumps(message)], descriptors)
    if body is not None:
        body.close()


def receive(connection: socket.socket) -> Message | None:
    """The next message; None at the end.

    Raises:
        BlockingIOError: there is none yet.
        OSError: this process has no free descriptor for the body; the message is lost.
    """
    try:
        data, descriptors = _receive_packet(connection)
    except ConnectionResetError:  # the other side closed without reading all; its messages follow this error
        data, descriptors = _receive_packet(connection)
    if not data:
        return None
    message: Message = pickle.loads(data)  # noqa: S301 - from our own child, or our own parent
    if isinstance(message, EndTasks) or message.body is None or message.body.data is not None:
        return message
    # The kernel closes a descriptor for which this process has no number.
    if not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    os.set_inheritable(descriptors[0], False)  # noqa: FBT003 - os.set_inheritable's signature
    return replace(message, body=Body(None, descriptors[0]))


def _receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 1)
    return data, descriptors
