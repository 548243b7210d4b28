"""What all operations on tensors share: on CUDA they run in a lane of their own, on the CPU where they are called.

An operation is started by the thread that hears of its release, at a time when the caller's stream may have gone far
ahead. So on CUDA each has a stream of its own, which waits for exactly what the caller had enqueued when it made the
operation. The stream of the thread that takes the result waits for that one; the host never does.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType

import torch

from worker_runtime.coordination.operation import Operation, ResultT_co
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.groups.torch_groups import TorchGroup, Work


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


class TensorOperation(Operation[ResultT_co]):
    """A collective on tensors that lie on one device."""

    _lane: Lane | None = None  # on CUDA

    def _choose_lane(self, device: str, tensor: torch.Tensor) -> None:
        """For constructors: what the caller has enqueued until now is waited for."""
        if device != "cpu":
            self._lane = Lane(tensor.device)

    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Begin to communicate; see `Operation`."""
        if self._lane is None:
            return self._communicate(group, terms)
        with self._lane:
            return self._communicate(group, terms)

    def finish(self, terms: Release, payload: memoryview) -> ResultT_co:
        """Make the result; see `Operation`."""
        if self._lane is not None:
            self._lane.hand_over(self._list_used())
        return self._conclude(terms, payload)

    @abstractmethod
    def _communicate(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """As `start`."""

    @abstractmethod
    def _conclude(self, terms: Release, payload: memoryview) -> ResultT_co:
        """As `finish`; `_communicate` was not called in a set of one, or where the data have travelled as payload."""

    @abstractmethod
    def _list_used(self) -> Iterable[torch.Tensor]:
        """The tensors that `_communicate` has read or made."""
