"""The sequencer's process as an owner sees it, and a rank's side of the wire, as plain as can be."""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from rendezvous.wire.waits import Waits, find_line
from tests.waiting import LIMIT_SECONDS
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Request, Signature
from worker_runtime.coordination.wire import Frame, Released

ROOT = Path(__file__).parents[4]
LOOPBACK = "127.0.0.1"
KEY = bytes(range(wire.KEY_BYTES))

Response = tuple[Frame, Released | Release | tuple[int, str] | str]


class Process:
    """`python -m worker_runtime.coordination.sequencer`, and its owner's end of its pipes."""

    def __init__(self, address: str = LOOPBACK) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "worker_runtime.coordination.sequencer", address],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.address = address
        self.port = 0
        self.generation = 0  # the last one that was begun

    def __enter__(self) -> Self:
        line = self.popen.stdout.readline()
        if line:
            self.port = json.loads(line)["port"]
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate(timeout=LIMIT_SECONDS)

    def order(self, line: bytes) -> None:
        """Write a line on its standard input."""
        self.popen.stdin.write(line + b"\n")
        self.popen.stdin.flush()

    def activate(self, generation: int, size: int, key: bytes = KEY, *, reports: bool = False) -> None:
        """Order it to serve a generation."""
        fields = {"generation": generation, "size": size, "key": key.hex(), "reports": reports}
        self.order(json.dumps(fields).encode())

    def begin(self, size: int) -> int:
        """Order it to serve the next generation; its number."""
        self.generation += 1
        self.activate(self.generation, size)
        return self.generation

    def connect(self) -> socket.socket:
        """Connect, and say nothing."""
        return socket.create_connection((self.address, self.port), LIMIT_SECONDS)

    def read_report(self) -> Waits:
        """The next line that it writes about ranks that wait."""
        text = find_line(self.popen.stdout.readline())
        assert text is not None
        return Waits.decode(text)

    def end(self) -> tuple[int, str]:
        """Close its standard input; its exit code, and what it wrote on standard error."""
        _, errors = self.popen.communicate(timeout=LIMIT_SECONDS)
        return self.popen.returncode, errors.decode()

    def count_wakeups(self) -> int:
        """How often it has gone to sleep, and so been woken."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))

    def count_files(self) -> int:
        """How many files it has open."""
        return len(list(Path(f"/proc/{self.popen.pid}/fd").iterdir()))

    def read_memory_bytes(self) -> int:
        """How much memory it has."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()


class Client:
    """A rank's connection; every wait has a limit."""

    def __init__(self, process: Process, rank: int, generation: int = 1, key: bytes = KEY) -> None:
        self.rank = rank
        self.socket = process.connect()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._signatures: dict[Signature, int] = {}
        self._size_of: dict[int, int] = {}
        self._asked = 0
        self._responses: deque[Response] = deque()
        greeting, self._proof = wire.make_greeting(
            key, generation, rank, self.receive(wire.NONCE_BYTES), os.urandom(wire.NONCE_BYTES)
        )
        self.socket.sendall(greeting)

    def await_proof(self) -> Self:
        """Wait for the sequencer's proof; EOFError when it hangs up instead."""
        assert self.receive(wire.PROOF_BYTES) == self._proof
        return self

    def encode(
        self, name: str, signature: Signature, payload: bytes = b"", sizes: tuple[int, ...] = (), process_set: int = 0
    ) -> bytes:
        """A request as a part of a REQUESTS; its signature must have been declared."""
        number = self._signatures[signature]
        return wire.encode_request(number, process_set, name.encode(), sizes, len(payload)) + payload

    def declare(self, signature: Signature) -> None:
        """Send a signature, once."""
        if signature not in self._signatures:
            number = self._signatures[signature] = len(self._signatures)
            self.send(Frame.SIGNATURE, wire.encode_signature(number, signature))

    def ask(
        self,
        name: str,
        signature: Signature,
        payload: bytes = b"",
        sizes: tuple[int, ...] = (),
        *,
        process_set: int = 0,
        set_size: int = 0,
    ) -> int:
        """Ask one request; its number."""
        self.declare(signature)
        self.send(Frame.REQUESTS, self.encode(name, signature, payload, sizes, process_set))
        return self.count(1, set_size)

    def count(self, requests: int, set_size: int = 0) -> int:
        """Count what was asked; the number of the first."""
        first = self._asked
        self._asked += requests
        self._size_of.update(dict.fromkeys(range(first, self._asked), set_size))
        return first

    def send(self, kind: Frame, body: bytes = b"") -> None:
        """Send a frame."""
        self.socket.sendall(wire.encode_frame(kind, body))

    def receive(self, size: int) -> bytes:
        """Exactly so many bytes; EOFError when the sequencer hangs up before."""
        data = b""
        while len(data) < size:
            try:
                chunk = self.socket.recv(size - len(data), socket.MSG_WAITALL)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def response(self) -> Response:
        """The next response that it receives."""
        while not self._responses:
            length, number = wire.HEADER.unpack(self.receive(wire.HEADER.size))
            self._responses += self._decode(Frame(number), memoryview(self.receive(length)))
        return self._responses.popleft()

    def released(self) -> Released:
        """The next response, which must be a release."""
        kind, response = self.response()
        assert isinstance(response, Released), (kind, response)
        return response

    def read_text(self, kind: Frame) -> str:
        """The text of the next response, which must be of this kind."""
        found, response = self.response()
        assert found is kind, (found, response)
        return response[1] if isinstance(response, tuple) else response

    def leave(self) -> None:
        """Say goodbye."""
        self.send(Frame.LEAVE)

    def is_closed(self) -> bool:
        """Wait until the sequencer hangs up; False when it says something instead."""
        try:
            self.receive(1)
        except EOFError:
            return True
        return False

    def _decode(self, kind: Frame, body: memoryview) -> Iterator[Response]:
        match kind:
            case Frame.RELEASES:
                for released in wire.decode_releases(body, self._size_of.__getitem__):
                    for each in split(released):
                        yield kind, each
            case Frame.NEUTRAL:
                yield kind, wire.decode_neutral(body)
            case Frame.REFUSAL | Frame.DEADLOCK:
                yield kind, wire.decode_numbered(body)
            case Frame.ARRIVALS:
                yield kind, json.dumps([(name, dict(asked)) for _, name, _, _, asked in wire.decode_arrivals(body)])
            case _:
                yield kind, str(body, "utf-8")


def split(released: Released) -> Iterator[Released]:
    """Releases that came as one, each by itself."""
    start = 0
    for place, length in enumerate(released.lengths):
        payload = released.payload[start : start + length]
        start += length
        number, index = released.number + place, released.index + place
        yield released._replace(number=number, index=index, lengths=(length,), payload=payload)


@contextmanager
def gathering(process: Process, size: int) -> Iterator[list[Client]]:
    """All ranks of a new generation with their proofs."""
    generation = process.begin(size)
    with ExitStack() as stack:
        yield [stack.enter_context(connected(process, rank, generation)) for rank in range(size)]


@contextmanager
def serving(size: int, generation: int = 1, **environment: str) -> Iterator[tuple[Process, list[Client]]]:
    """A sequencer, and all ranks of a generation with their proofs; rank 0 hands over its environment."""
    with Process() as process:
        process.generation = generation - 1
        with gathering(process, size) as clients:
            if environment:
                clients[0].send(Frame.SETTINGS, wire.encode_settings(environment))
            yield process, clients


@contextmanager
def connected(process: Process, rank: int, generation: int = 1) -> Iterator[Client]:
    """A rank with its proof."""
    client = Client(process, rank, generation)
    try:
        yield client.await_proof()
    finally:
        with suppress(OSError):
            client.socket.close()


def summing(dtype: str = "float32", reduction: Reduction = Reduction.SUM, count: int = 16, note: str = "") -> Signature:
    """An allreduce whose data travel in the request."""
    return Signature(Kind.ALLREDUCE, (dtype,), ((count,),), reduction, payload_dtype=dtype, note=note)


BARRIER = Signature(Kind.BARRIER)
JOIN = Signature(Kind.JOIN)
PLAIN = Signature(Kind.ALLREDUCE, ("float32",), ((16,),), Reduction.SUM)


def floats(*values: float) -> bytes:
    """A payload of float32."""
    return struct.pack(f"<{len(values)}f", *values)


def exchange(clients: list[Client], name: str = "barrier") -> None:
    """All ask one thing, and are ordered to run it, with the same index."""
    for client in clients:
        client.ask(name, BARRIER)
    assert len({client.released().index for client in clients}) == 1


def make_request(name: str, signature: Signature) -> Request:
    """A request of the global set."""
    return Request(0, name, signature)
