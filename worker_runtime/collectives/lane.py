"""Where an operation on CUDA tensors runs: beside the caller's stream, from the moment its inputs are ready.

Operations are started by whatever thread hears of the release, at a time when the caller's stream may have gone far
ahead. So each has a stream of its own, which waits for exactly what the caller had enqueued when it made the operation;
whoever takes the result lets his own stream wait for it, and never the host.
"""

from collections.abc import Iterable
from types import TracebackType

import torch


class Lane:
    """A context in which kernels and collectives are enqueued; made in the caller's thread.

    Args:
        device: of the operation's tensors, a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._entered = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        self._entered.__enter__()  # type: ignore[no-untyped-call]  # the same

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, traceback)

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream go on where this one is now.

        Args:
            tensors: what this stream has used: their memory must outlive what the current stream does with it.
        """
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)
