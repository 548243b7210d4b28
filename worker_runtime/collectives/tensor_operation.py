"""What all operations on tensors share: on CUDA they run in a lane of their own, on the CPU where they are called."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch

from worker_runtime.collectives.lane import Lane
from worker_runtime.coordination.operation import Operation, ResultT_co
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.groups.torch_groups import TorchGroup, Work


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
