"""Both ends of a conversation with the sequencer, on one socket pair: a test plays the sequencer."""

import socket
import threading
from collections.abc import Sequence
from typing import Any

from worker_runtime import wire
from worker_runtime.accord import Accord
from worker_runtime.bundles import Unpack
from worker_runtime.core.questions import Kind, Question, Reduction, Release, Signature
from worker_runtime.driver import Driver
from worker_runtime.handles import Handle
from worker_runtime.link import Link
from worker_runtime.operation import Operation
from worker_runtime.wire import Frame

LIMIT_SECONDS = 10.0
SUM = Signature(Kind.ALLREDUCE, ("float32",), ((2,),), Reduction.SUM, payload_dtype="float32")


class Echo(Operation[bytes]):
    """Sends eight bytes and returns those of the answer."""

    def __init__(self, name: str, data: bytes = b"12345678") -> None:
        self.title = name
        self.question = Question(0, name, SUM)
        self._data = data

    @property
    def payload(self) -> bytes:
        """Those it sends."""
        return self._data

    def start(self, group: object, terms: Release) -> tuple[()]:  # noqa: ARG002 - the base class's signature
        """Never called."""
        raise AssertionError("its data travel as payload")

    def finish(self, terms: Release, payload: memoryview) -> bytes:  # noqa: ARG002 - the same
        """Those of the answer."""
        return bytes(payload)


class Sequencer:
    """The other end: reads frames and answers as a test says."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.settimeout(LIMIT_SECONDS)
        self.frames: list[int] = []  # the types of what came

    def read(self) -> tuple[int, bytes]:
        """The next frame: its type and its body."""
        length, kind = wire.HEADER.unpack(self._read_exactly(wire.HEADER.size))
        self.frames.append(kind)
        return kind, self._read_exactly(length)

    def read_names(self, count: int) -> list[str]:
        """The names of the next questions."""
        names: list[str] = []
        while len(names) < count:
            kind, body = self.read()
            if kind == Frame.ASK:
                names += [wire.decode_head(question[0])[2] for question in wire.decode_questions(body, 0, len(body))]
        return names

    def release(self, *numbers: int, payload: bytes = b"answered") -> None:
        """Answer questions by their numbers."""
        releases = [
            wire.encode_releases(number, Release(number, Question(0, "", SUM), (0, 1)), [payload]) for number in numbers
        ]
        self.send(Frame.RELEASES, b"".join(releases))

    def send(self, kind: int, body: bytes = b"") -> None:
        """Send any frame."""
        self.send_bytes(wire.HEADER.pack(len(body), kind) + body)

    def send_bytes(self, data: bytes) -> None:
        """Send a part of a frame, or several."""
        self._connection.sendall(data)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._connection.recv(count - len(data))
            assert chunk, "the worker has ended the connection"
            data += chunk
        return data


class Player:
    """Performs what is answered, as an executor would."""

    rank = 0

    def __init__(self, connection: socket.socket) -> None:
        self.neutral: list[Release] = []
        self.ended: list[str] = []
        self.asked: list[Handle[object]] = []
        self.accord = Accord()
        self.driver = Driver(Link(connection), self, self.accord)

    def submit(self, name: str, *, is_awaited: bool = False, at_once: bool = False) -> Handle[bytes]:
        """Ask without waiting."""
        handle: Handle[bytes] = Handle(self, Echo(name), threading.get_ident())
        self.asked.append(handle)  # type: ignore[arg-type]  # its result is not asked for
        self.driver.ask(handle, at_once=at_once, is_awaited=is_awaited)  # type: ignore[arg-type]  # the same
        return handle

    def run(self, name: str) -> bytes:
        """Ask and wait."""
        return self.submit(name, is_awaited=True).wait()

    def await_answer(self, handle: Handle[object]) -> None:
        """As an executor's."""
        self.driver.await_answer(handle)

    def listen(self) -> None:
        """As an executor's."""
        self.driver.listen()

    def forget(self, handle: Handle[object]) -> None:
        """As an executor's."""
        self.asked.remove(handle)

    def settle(self, handle: Handle[object], terms: Release) -> bool:
        """As an executor's."""
        del terms
        self.forget(handle)
        return True

    def count_members(self, process_set: int) -> int:
        """As an executor's."""
        return 2 + process_set

    def list_members(self, process_set: int) -> tuple[int, ...]:
        """As an executor's."""
        return tuple(range(self.count_members(process_set)))

    def perform(self, handle: Handle[object], terms: Release, payload: memoryview) -> None:
        """As an executor's."""
        handle.begin(terms, (), payload)

    def perform_neutral(self, terms: Release) -> None:
        """As an executor's."""
        self.neutral.append(terms)

    def refuse(self, handle: Handle[object], reason: str) -> None:
        """As an executor's."""
        handle.fail(RuntimeError(reason))

    def conclude(self, handles: Sequence[Handle[Any]], terms: Sequence[Release], unpack: Unpack) -> bool:
        """Each is to be performed by itself."""
        del handles, terms, unpack
        return False

    def give_up(self, reason: str) -> None:
        """As an executor's."""
        self.ended.append(reason)
        for handle in self.asked:
            if not handle.is_answered:
                handle.fail(RuntimeError(reason))
