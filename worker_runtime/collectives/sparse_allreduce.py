"""Sparse allreduce: sums sparse tensors over the ranks of a set, by gathering their elements."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self

import torch

from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.dtypes import check_sparse
from worker_runtime.collectives.tensor_operation import check_tensor, make_error
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Reduction, Release
from worker_runtime.groups.torch_groups import TorchGroup, Work


class SparseAllreduce(Operation[torch.Tensor]):
    """Sums or averages sparse tensors. The result is sparse (COO) and not coalesced: indices may occur several times.

    A joined rank contributes no elements; an average still divides by the size of the set.

    Args:
        tensor: a sparse COO tensor, coalesced or not, of the same shape and dtype on all ranks.
        reduction: SUM or AVERAGE.
        among: the ranks.
        name: the full name, the same on all ranks.

    Raises:
        ValueError: the tensor is not sparse COO, or its dtype does not support the reduction.
    """

    def __init__(self, tensor: torch.Tensor, reduction: Reduction, among: Members, name: str) -> None:
        check_tensor(name, tensor)
        if tensor.layout is not torch.sparse_coo:
            raise make_error(name, f"a sparse COO tensor was expected, not one of layout {tensor.layout}")
        try:
            check_sparse(tensor.dtype, reduction)
        except ValueError as error:
            raise make_error(name, str(error)) from None

        tensor = tensor.detach()
        # The public accessors would coalesce first, which costs more than sending duplicate indices.
        indices, values = tensor._indices(), tensor._values()  # noqa: SLF001 - the public accessors would coalesce

        self._reduction = reduction
        self.among = among
        self._tensor = tensor
        self._elements = Allgather(
            [indices.t(), values],
            among,
            name,
            tolerates_joined=True,
            reduction=reduction,
            note=f"sparse {list(tensor.shape)}",
        )
        self.request = self._elements.request
        self.sizes = self._elements.sizes

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Return "": the inputs are only read; see `Operation`."""
        del is_begun
        return ""

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        del ranks
        return type(self)(self._tensor, self._reduction, among, self.request.name)

    def follow_caller(self) -> AbstractContextManager[object]:
        """See `Operation`."""
        return self._elements.follow_caller()

    def start(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """Gather indices and values."""
        return self._elements.start(group, release)

    def finish(self, release: Release, payload: memoryview) -> torch.Tensor:
        """Return one tensor with the elements of all ranks."""
        (indices, _), (values, _) = self._elements.finish(release, payload)
        if self._reduction is Reduction.AVERAGE:
            values.div_(self.among.size)
        shape, device = self._tensor.shape, values.device
        return torch.sparse_coo_tensor(
            indices.t(), values, shape, device=device, is_coalesced=False, check_invariants=False
        )
