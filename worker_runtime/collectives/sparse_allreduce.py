"""Adding up sparse tensors over the ranks of a set, by gathering their elements."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.dtypes import check_sparse
from worker_runtime.collectives.tensor_operation import check_tensor, make_error
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.questions import Reduction, Release
from worker_runtime.groups.torch_groups import TorchGroup, Work


class SparseAllreduce(Operation[torch.Tensor]):
    """Add up, or average, sparse tensors; the result is sparse (COO) and not coalesced: indices may stand in it twice.

    A rank that has joined contributes no elements; the average divides by the size of the set all the same.

    Args:
        tensor: sparse COO, coalesced or not, of the same shape and dtype on all ranks, also without elements.
        reduction: SUM or AVERAGE.
        among: the ranks.
        name: as it travels, the same on all ranks.

    Raises:
        ValueError: the tensor is not sparse COO or its dtype has no such reduction.
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
        # The public accessors would sort and add up first, which costs more than to send what stands twice.
        indices, values = tensor._indices(), tensor._values()  # noqa: SLF001 - see above
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
        self.question = self._elements.question
        self.sizes = self._elements.sizes

    def find_obstacle(self, *, is_begun: bool) -> str:
        """It can be run again: its inputs are only read; see `Operation`."""
        del is_begun
        return ""

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """See `Operation`."""
        del ranks
        return type(self)(self._tensor, self._reduction, among, self.question.name)

    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Gather indices and values."""
        return self._elements.start(group, terms)

    def finish(self, terms: Release, payload: memoryview) -> torch.Tensor:
        """Put the elements of all ranks into one tensor."""
        (indices, _), (values, _) = self._elements.finish(terms, payload)
        if self._reduction is Reduction.AVERAGE:
            values.div_(self.among.size)
        shape, device = self._tensor.shape, values.device
        return torch.sparse_coo_tensor(
            indices.t(), values, shape, device=device, is_coalesced=False, check_invariants=False
        )
