"""A sparse gradient: its elements are gathered, so that what travels is as large as what was used of the parameter."""

import torch

from worker_runtime.collectives import SparseAllreduce
from worker_runtime.coordination.operation import Operation
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.settings import Settings


class SparseBucket(Bucket):
    """One parameter whose gradient is sparse on some rank; a rank that has none contributes no elements.

    Args:
        entry: of the parameter.
        number, note: as for every bucket.
        settings: how to combine: a sum or an average; factors of the user's cancel out in an average.
        sparse_dims: how many of the gradient's dimensions are sparse, on all ranks.
    """

    kind = "allgather"

    def __init__(self, entry: Entry, number: int, note: str, settings: Settings, sparse_dims: int) -> None:
        super().__init__([entry], number, note)
        self._reduction = settings.how.reduction
        self._sparse_dims = sparse_dims
        self._dtype = settings.choose_dtype(entry.parameter.dtype)
        self._result: torch.Tensor | None = None

    def take(self, entry: Entry) -> None:
        """It travels as it is."""
        entry.kept = entry.parameter.grad

    def _give(self) -> None:
        """Put the result in the gradient's place: sparse, and not coalesced, as autograd makes it."""
        (entry,), result = self.entries, self._result
        if result is not None and (entry.parameter.requires_grad or entry.parameter.grad is not None):
            entry.parameter.grad = result.to(entry.parameter.dtype)

    def reset(self) -> None:
        """Forget the step."""
        super().reset()
        self._result = None

    def _make_operation(self, comm: Communicator, name: str) -> Operation[torch.Tensor]:
        return SparseAllreduce(self._make_sparse(), self._reduction, comm.members, name)

    def _receive(self, result: torch.Tensor) -> None:
        self._result = result

    def _make_sparse(self) -> torch.Tensor:
        """The gradient with the agreed number of sparse dimensions."""
        parameter = self.entries[0].parameter
        gradient = parameter.grad
        dims = self._sparse_dims
        if gradient is None:
            return torch.sparse_coo_tensor(
                torch.empty((dims, 0), dtype=torch.int64, device=parameter.device),
                torch.empty((0, *parameter.shape[dims:]), dtype=self._dtype, device=parameter.device),
                parameter.shape,
                device=parameter.device,
                check_invariants=False,
            )
        gradient = gradient.detach()
        if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != dims:
            gradient = (gradient if gradient.layout is torch.strided else gradient.to_dense()).to_sparse(dims)
        return gradient.to(self._dtype)
