"""What the owner orders on standard input; its end is the owner's, and the sequencer's."""

import os

from worker_runtime.sequencer.activation import Activation, OrderError, parse_activation

_CHUNK_BYTES = 65_536


class Orders:
    """Activations, one a line, from a descriptor that is read when it is ready."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._partial = b""

    def read(self) -> Activation | None:
        """The newest activation that has come, if one has; earlier ones are outdated by it.

        Raises:
            EOFError: the owner has gone.
            OrderError: a line is no activation.
        """
        chunk = os.read(self.descriptor, _CHUNK_BYTES)
        if not chunk:
            raise EOFError
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _CHUNK_BYTES:
            raise OrderError(f"a line of more than {_CHUNK_BYTES} bytes was sent")
        activations = [parse_activation(line) for line in lines if line.strip()]
        return max(activations, key=lambda activation: activation.generation, default=None)
