"""The messages between an agent and its helper processes: the forkserver, the sequencer, and the backend check.

The forkserver has one end of a socket pair. In both directions a message is a four-byte length, most significant byte
first, and a JSON object. The first byte of a request carries four descriptors: the worker's three standard streams, and
its gate. A fifth one is the memory of its snapshots; the worker has it under the number that its environment names. The
agent writes a byte to the gate when it has recorded the worker, which then runs the program; a worker
whose gate is closed exits. So no worker runs without the agent's knowledge, whichever process is killed. Undecodable
bytes in texts are surrogates, as in Python's file system encoding, so that any environment and path arrive unchanged.

The sequencer fixes the order in which the members of a generation run their collectives. `python -m SEQUENCER ADDRESS`
listens on a free port of ADDRESS and writes the port as one line of JSON. Then it reads one line for each generation to
serve, and STOP, and exits at the end of its standard input. So it does not outlive its agent, and the generations' keys
are neither on a command line nor in an environment.

The backend check is `python -m BACKENDS NAME`, run by the workers' interpreter. It writes one line of JSON with the
objection to that backend; an empty one means that the workers can use it.
"""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LENGTH = struct.Struct(">I")
DESCRIPTORS = 5  # that travel with a request at most: standard input, output and error, the gate, and a memory


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Fork a worker that behaves as if `arguments` were executed.

    executable: the interpreter's file, in case the program must be executed.
    arguments: the whole command, the interpreter first.
    directory: its working directory.
    environment: its whole environment.
    threads: OMP_NUM_THREADS in its environment, which is 1 in the forkserver's; None if it is not set.
    number: comes back in the answer; 0 for a request that was not sent.
    """

    executable: str
    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    threads: int | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """The forkserver has completed its imports; the objection says why it cannot fork, and is "" if it can."""

    objection: str


@dataclass(frozen=True, slots=True)
class Forked:
    """The worker of this request runs, is a child of the agent, and waits at its gate."""

    number: int
    pid: int


Message = ForkRequest | Ready | Forked
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (ForkRequest, Ready, Forked)}


def encode(message: Message) -> bytes:
    """One message, with its length."""
    data = json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()
    return LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Message:
    """The message behind a length.

    Raises:
        ValueError, KeyError, TypeError: it is malformed.
    """
    fields = json.loads(data)
    kind = _KINDS[fields.pop("kind")]
    if "arguments" in fields:
        fields["arguments"] = tuple(fields["arguments"])
    return kind(**fields)


SEQUENCER = "worker_runtime.coordination.sequencer"
BACKENDS = "worker_runtime.groups.backends"
STOP = b"stop\n"  # a stop notice has come for the job
# Output of imports may come before it, with or without the end of a line.
_PORT = re.compile(rb'\{"port": ?(\d{1,5})\}\s*$')
_ANSWER = re.compile(rb'(\{"objection": .*\})\s*$')


@dataclass(frozen=True, slots=True)
class Activation:
    """Serve this generation of `size` members that have `key`.

    reports: the reader of the sequencer's output wants to know of ranks that wait (`rendezvous.wire.waits`); else a
        waiting rank prints it.
    """

    generation: int
    size: int
    key: bytes = field(repr=False)
    reports: bool = False

    def encode(self) -> bytes:
        """One line of JSON."""
        fields = {"generation": self.generation, "size": self.size, "key": self.key.hex(), "reports": self.reports}
        return json.dumps(fields).encode() + b"\n"


def read_port(line: bytes) -> int | None:
    """The port in a line of the sequencer's output; None if there is none."""
    match = _PORT.search(line)
    if match is None:
        return None
    return int(match[1])


def encode_answer(objection: str) -> bytes:
    """The backend check's answer; the objection is a sentence without a full stop, or empty."""
    return json.dumps({"objection": objection}).encode() + b"\n"


def read_answer(output: bytes) -> str | None:
    """The objection at the end of the backend check's output; None if there is no answer."""
    match = _ANSWER.search(output)
    if match is None:
        return None
    try:
        return str(json.loads(match[1])["objection"])
    except ValueError:
        return None
