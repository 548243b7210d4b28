"""What an agent and the processes beside it say to each other: forkserver, sequencer, and the check of a backend.

The forkserver holds one end of a socket pair. Either way a message is a four-byte length, most significant byte first,
and a JSON object; a request carries four descriptors with its first byte: the worker's three standard streams, and its
gate. The worker runs the program when it has read a byte from the gate, which the agent writes once it knows of the
worker, and ends when it finds it closed: so whatever is killed when, no worker runs that its agent has given up. Text
holds undecodable bytes as Python's file system encoding does (surrogates), so that any environment and any path arrive
as they were.

The sequencer fixes the order in which the members of a generation run their collectives. It is `python -m SEQUENCER
ADDRESS`: it listens on a free port of ADDRESS and writes one line of JSON that tells the port; then it reads one line
for each generation that it is to serve, and STOP, and ends at the end of its standard input. So it does not outlive
its agent, and the generations' keys are on no command line and in no environment.

The check is `python -m BACKENDS NAME`, run by the workers' own interpreter: it writes one line of JSON that holds an
objection against that backend, which is empty when there is none.
"""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LENGTH = struct.Struct(">I")
DESCRIPTORS = 4  # that travel with a request: standard input, output and error, and the gate


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Fork a worker that is what `arguments` would be if it were executed.

    number: returns with the answer.
    executable: the interpreter's file, for the case that the program must be executed after all.
    arguments: the whole command, the interpreter first.
    directory: its working directory.
    environment: all of it.
    threads: what its environment says about threads (OMP_NUM_THREADS), which is 1 in the forkserver's own; None when it
        says nothing.
    """

    number: int
    executable: str
    arguments: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    threads: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """The forkserver has imported what it was asked to; what it must not have is one sentence, or "" if it may fork."""

    objection: str


@dataclass(frozen=True, slots=True)
class Forked:
    """The worker of this request lives, is the agent's own child, and waits at its gate."""

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
        ValueError, KeyError, TypeError: it is none of ours.
    """
    fields = json.loads(data)
    kind = _KINDS[fields.pop("kind")]
    if "arguments" in fields:
        fields["arguments"] = tuple(fields["arguments"])
    return kind(**fields)


SEQUENCER = "worker_runtime.coordination.sequencer"
BACKENDS = "worker_runtime.groups.backends"
STOP = b"stop\n"  # the line that says that a stop notice has come for the job
# What imports have printed may stand before it, with or without the end of a line.
_PORT = re.compile(rb'\{"port": ?(\d{1,5})\}\s*$')
_ANSWER = re.compile(rb'(\{"objection": .*\})\s*$')


@dataclass(frozen=True, slots=True)
class Activation:
    """The sequencer is to serve this generation, of `size` members who know `key`."""

    generation: int
    size: int
    key: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The line that says so."""
        fields = {"generation": self.generation, "size": self.size, "key": self.key.hex()}
        return json.dumps(fields).encode() + b"\n"


def read_port(line: bytes) -> int | None:
    """The port that a line of the process tells; None when it tells none."""
    match = _PORT.search(line)
    return None if match is None else int(match[1])


def encode_answer(objection: str) -> bytes:
    """The line with which the process answers; the objection is a sentence without a full stop, or empty."""
    return json.dumps({"objection": objection}).encode() + b"\n"


def read_answer(output: bytes) -> str | None:
    """The objection at the end of what the process wrote; None when it did not answer."""
    match = _ANSWER.search(output)
    if match is None:
        return None
    try:
        return str(json.loads(match[1])["objection"])
    except ValueError:
        return None
