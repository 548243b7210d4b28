"""What the owner orders on standard input: which generation to serve, and `stop`; at its end the sequencer ends."""

import json
import os
from dataclasses import dataclass, field

from worker_runtime.coordination.wire import KEY_BYTES


class OrderError(ValueError):
    """The owner has sent a line that is no activation; the sequencer ends with it."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A generation, how many ranks it has, and the key by which its members prove themselves."""

    generation: int
    size: int
    key: bytes = field(repr=False)


def parse_activation(line: bytes) -> Activation:
    """Read `{"generation": 3, "size": 4, "key": "<64 hexadecimal digits>"}`.

    Raises:
        OrderError: the line is none; the message does not repeat it, since it may hold a key.
    """
    try:
        fields = json.loads(line)
        activation = Activation(int(fields["generation"]), int(fields["size"]), bytes.fromhex(fields["key"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise OrderError(f"a line with generation, size and key was expected ({type(error).__name__})") from None
    if activation.generation < 0 or activation.size < 1 or len(activation.key) != KEY_BYTES:
        raise OrderError(
            f"generation {activation.generation} of size {activation.size} with a key of {len(activation.key)} bytes "
            f"was ordered; at least 0, 1 and exactly {KEY_BYTES} were expected"
        )
    return activation


_CHUNK_BYTES = 65_536
_STOP = b"stop"


class Orders:
    """Activations and `stop`, one a line, from a descriptor that is read when it is ready.

    is_stopping: a stop notice has come for the job.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_stopping = False
        self._partial = b""

    def read(self) -> Activation | None:
        """The newest activation that has come, if one has; earlier ones are outdated by it.

        Raises:
            EOFError: the owner has gone.
            OrderError: a line is no order.
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
