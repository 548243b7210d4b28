"""What a program that runs functions and the launcher of its job say to each other, over a socket pair.

One message is one packet. The bytes of a function or a result lie in the message while they are few, and else in a file
without a name, whose descriptor travels along: it goes with the last process that has it open, however that ends.
"""

import io
import os
import pickle
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import BinaryIO

from rendezvous.wire.tasks import PIECE_BYTES

INLINE_BYTES = 32 * 1024
_PACKET_BYTES = 128 * 1024  # less than what the kernel lets a packet have


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes in memory, or, where `data` is None, in a file; whoever has the body closes it."""

    data: bytes | None
    descriptor: int | None = None

    @classmethod
    def of(cls, file: BinaryIO) -> "Body":
        """What is in a file with a descriptor, or in one in memory; the file stays the caller's."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= INLINE_BYTES:
            return cls(file.read())
        file.flush()
        return cls(None, os.dup(file.fileno()))

    def pieces(self) -> Iterator[bytes]:
        """The bytes, piece by piece, from the beginning; several readers do not disturb each other."""
        if self.data is not None:
            yield self.data
            return
        assert self.descriptor is not None  # noqa: S101 - see the class
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
        """Let go of the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)


async def collect(pieces: AsyncIterator[bytes], size: int) -> Body | None:
    """The body of so many bytes that come piece by piece; None where they break off.

    Raises:
        OSError: there is no room for them.
    """
    if size <= INLINE_BYTES:
        data = b"".join([piece async for piece in pieces])
        return Body(data) if len(data) == size else None
    with TemporaryFile(prefix="hvdrun-") as file:
        async for piece in pieces:
            file.write(piece)
        return Body.of(file) if file.tell() == size else None


@dataclass(frozen=True, slots=True)
class RunTask:
    """To the launcher: have all workers run this function."""

    number: int
    body: Body = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndTasks:
    """To the launcher: there will be no more functions; the workers end when they have run those that were sent."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """To the program: what has become of a function on one worker; see `rendezvous.wire.tasks.OutcomeHead`."""

    rank: int
    number: int
    failed: bool
    follows_another: bool
    body: Body = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """To the program: the job has ended; the last message.

    succeeded: as a command it would exit with 0.
    reason: one sentence.
    rank, returncode, last_lines: of the worker that failed first, where one did; the returncode as waitpid tells it.
    """

    succeeded: bool
    exit_code: int
    reason: str
    rank: int | None = None
    returncode: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """To the program: the job could not be launched; the last message.

    lines: the sentence, and what belongs beneath it.
    """

    lines: tuple[str, ...]
    exit_code: int


Message = RunTask | EndTasks | Delivered | Ended | Refused


def send(connection: socket.socket, message: Message) -> None:
    """Send one message; the body that it has is closed by that.

    Raises:
        BlockingIOError: the other side is behind; the body stays open.
        OSError: there is no other side.
    """
    body = message.body if isinstance(message, RunTask | Delivered) else None
    descriptors = [] if body is None or body.descriptor is None else [body.descriptor]
    socket.send_fds(connection, [pickle.dumps(message)], descriptors)
    if body is not None:
        body.close()


def receive(connection: socket.socket) -> Message | None:
    """The next message; None at the end.

    Raises:
        BlockingIOError: none has come.
    """
    try:
        data, descriptors = _receive_packet(connection)
    except ConnectionResetError:  # the other side left some message unread; what it has said comes after that
        data, descriptors = _receive_packet(connection)
    if not data:
        return None
    message: Message = pickle.loads(data)  # noqa: S301 - from our own child, or our own parent
    if isinstance(message, RunTask | Delivered) and descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                os.set_inheritable(descriptor, False)  # noqa: FBT003 - os.set_inheritable's signature
        return replace(message, body=Body(None, descriptors[0]))
    return message


def _receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(connection, _PACKET_BYTES, 1)
    return data, descriptors
