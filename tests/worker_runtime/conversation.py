"""The two ends of a conversation with the sequencer, on one socket pair: a test plays the sequencer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import LIMIT_SECONDS
from worker_runtime.coordination import wire
from worker_runtime.coordination.driver import Driver
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.messages import Answered, Ended, Neutral, ReceivedResponse, Refused
from worker_runtime.coordination.operation import Handle, Members, Operation
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.coordination.wire import Frame
from worker_runtime.errors import ShutDownError

SUM = Signature(Kind.ALLREDUCE, ("float32",), ((2,),), Reduction.SUM, payload_dtype="float32")


class Echo(Operation[bytes]):
    """Sends eight bytes and returns those of the response."""

    def __init__(self, name: str, data: bytes = b"12345678") -> None:
        self.among = Members(0, (0, 1), 0)
        self.request = Request(0, name, SUM)
        self._data = data

    @property
    def payload(self) -> bytes:
        """The data that the operation sends."""
        return self._data

    def start(self, *_: object) -> tuple[()]:
        """The operation's data travel as payload, so nothing is started."""
        raise AssertionError("it is never called")

    def finish(self, release: Release, payload: memoryview) -> bytes:
        """The data of the response."""
        del release
        return bytes(payload)


class Sequencer:
    """The other end: reads frames and responses as a test says."""

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
        """The names of the next requests."""
        names: list[str] = []
        while len(names) < count:
            kind, body = self.read()
            if kind == Frame.REQUESTS:
                names += [wire.decode_head(request[0])[2] for request in wire.decode_requests(body, 0, len(body))]
        return names

    def release(self, *numbers: int, payload: bytes = b"answered") -> None:
        """Answer requests by their numbers."""
        releases = [
            wire.encode_releases(number, Release(number, Request(0, "", SUM), (0, 1)), [payload]) for number in numbers
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
    """Carries out what is answered, as an engine would."""

    rank = 0

    def __init__(self, connection: socket.socket, patience_seconds: float = 1.0) -> None:
        self.neutral: list[Release] = []
        self.ended: list[str] = []
        self.asked: list[Handle[bytes]] = []
        self.askers: set[int] = set()
        self.driver = Driver(Link(connection), self.list_members, self.carry_out, self.askers, patience_seconds)

    def submit(self, name: str, *, is_awaited: bool = False, at_once: bool = False) -> Handle[bytes]:
        """Ask without waiting."""
        handle = Handle(Echo(name))
        self.asked.append(handle)
        self.driver.ask(handle, at_once=at_once, is_awaited=is_awaited)
        return handle

    def run(self, name: str) -> bytes:
        """Ask and wait."""
        return self.wait(self.submit(name, is_awaited=True))

    def wait(self, handle: Handle[bytes]) -> bytes:
        """Wait for a response."""
        self.driver.await_response(handle)
        if handle.failure is not None:
            raise handle.failure
        if not handle.is_answered:
            raise ShutDownError(handle.title, 0)
        return bytes(handle.payload)

    def list_members(self, process_set: int) -> tuple[int, ...]:
        """Of set 0 two, of set 1 three."""
        return tuple(range(2 + process_set))

    def carry_out(self, response: ReceivedResponse) -> None:
        """Nothing communicates; a refusal fails one operation, the end all that waits."""
        match response:
            case Answered():
                for handle, release, payload in zip(
                    response.handles, response.releases, response.payloads, strict=True
                ):
                    handle.begin(release, (), payload)
            case Neutral(release):
                self.neutral.append(release)
            case Refused():
                response.handle.fail(RuntimeError(response.reason))
            case Ended(reason):
                self.ended.append(reason)
                for handle in self.asked:
                    if not handle.is_answered:
                        handle.fail(RuntimeError(reason))


@contextmanager
def converse(patience_seconds: float = 1.0) -> Iterator[tuple[Player, Sequencer]]:
    """A rank's end and the sequencer's; both are closed in the end."""
    ours, theirs = socket.socketpair()
    player, sequencer = Player(ours, patience_seconds), Sequencer(theirs)
    yield player, sequencer
    player.driver.leave()
    sequencer.close()


class Errand(threading.Thread):
    """A thread of a test, which begins immediately; `finish` waits for its end."""

    def __init__(self, function: Callable[..., object], *arguments: object, daemon: bool | None = None) -> None:
        super().__init__(daemon=daemon)
        self._function, self._arguments = function, arguments
        self._result: object = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Keep what comes of it."""
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._error = error

    def finish(self) -> Any:
        """Wait for its end; what the function returned."""
        self.join(LIMIT_SECONDS)
        assert not self.is_alive(), f"{self._function} does not end"
        if self._error is not None:
            raise self._error
        return self._result
