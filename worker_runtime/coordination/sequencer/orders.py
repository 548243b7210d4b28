"""What the owner orders on standard input; its end is the owner's, and the sequencer's."""

import os

from worker_runtime.coordination.sequencer.activation import Activation, OrderError, parse_activation

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
