"""What an agent and its forkserver say to each other, on a socket pair that only they hold.

Either way a message is a four-byte length, most significant byte first, and a JSON object; a request carries four
descriptors with its first byte: the worker's three standard streams, and its gate. The worker runs the program when it
has read a byte from the gate, which the agent writes once it knows of the worker, and ends when it finds it closed: so
whatever is killed when, no worker runs that its agent has given up. Text holds undecodable bytes as Python's file
system encoding does (surrogates), so that any environment and any path arrive as they were.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass

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
