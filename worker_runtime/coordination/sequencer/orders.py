"""The owner's orders on standard input: activations of generations, and `stop`."""

import json
import os
from dataclasses import dataclass, field

from worker_runtime.coordination.wire import KEY_BYTES


class OrderError(ValueError):
    """The owner has sent a malformed line; the sequencer exits."""


@dataclass(frozen=True, slots=True)
class ActivationOrder:
    """The order to serve a generation: its number, its size, and the key that its members must prove.

    reports: the owner wants to know of ranks that wait; else a waiting rank prints it.
    """

    generation: int
    size: int
    key: bytes = field(repr=False)
    reports: bool = False


def parse_activation(line: bytes) -> ActivationOrder:
    """Read `{"generation": 3, "size": 4, "key": "<64 hexadecimal digits>"}`.

    Raises:
        OrderError: the line is malformed; the message does not repeat it, since it may contain a key.
    """
    try:
        fields = json.loads(line)
        key, reports = bytes.fromhex(fields["key"]), bool(fields.get("reports"))
        activation = ActivationOrder(int(fields["generation"]), int(fields["size"]), key, reports)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise OrderError(f"a line with generation, size and key was expected ({type(error).__name__})") from None
    if activation.generation < 0 or activation.size < 1 or len(activation.key) != KEY_BYTES:
        raise OrderError(
            f"an activation has generation {activation.generation}, size {activation.size} and a key of "
            f"{len(activation.key)} bytes; at least 0, at least 1 and exactly {KEY_BYTES} were expected"
        )
    return activation


_CHUNK_BYTES = 65_536
_STOP = b"stop"


class Orders:
    """Reads activations and `stop`, one a line, from a descriptor.

    Args:
        descriptor: where it reads.

    is_stopping: `stop` was read.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_stopping = False
        self._partial = b""

    def read(self) -> ActivationOrder | None:
        """Read once from the ready descriptor; return the newest activation, if there is one.

        Raises:
            EOFError: the owner has ended.
            OrderError: a line is malformed.
        """
        chunk = os.read(self.descriptor, _CHUNK_BYTES)
        if not chunk:
            raise EOFError
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _CHUNK_BYTES:
            raise OrderError(f"a line of more than {_CHUNK_BYTES} bytes was sent")
        orders = [line.strip() for line in lines if line.strip()]
        self.is_stopping |= _STOP in orders
        activations = [parse_activation(line) for line in orders if line != _STOP]
        return max(activations, key=lambda activation: activation.generation, default=None)
