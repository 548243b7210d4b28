"""Buckets without a flat tensor: gradients that are reduced in place, compressed, or sparse.

MXNet's gradients must stay in its own memory. So large ones are reduced there, and only small ones are packed. In an
elastic job the results are new tensors, which the caller of the reducer copies back.

The size of a compressed gradient is known only after compression, so no flat tensor can be prepared. The compressed
tensors are one operation, and the results are decompressed one by one.

The elements of a sparse gradient are gathered, so the transfer is as large as the used part of the parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.sparse_allreduce import SparseAllreduce
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.reduction.bucket import Bucket, Contents, Entry, find_dtype
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.settings import Compressor, Settings

Tensors: TypeAlias = list[torch.Tensor]


class InPlaceBucket(Bucket[Contents[Tensors]]):
    """Dense gradients that are reduced in their own memory and dtype.

    Args:
        entries, number, note: see `Bucket`.
        settings: how the gradients are combined.
        comm: the communicator.
    """

    make_contents = Contents

    def __init__(
        self, entries: Sequence[Entry], number: int, note: str, settings: Settings, comm: Communicator
    ) -> None:
        super().__init__(entries, number, note)
        reduction = settings.how.reduction
        factors = settings.find_factors(comm.members.size)
        self._how = Combination(Reduction.SUM if reduction is Reduction.AVERAGE else reduction, *factors)
        self._keeps = comm.is_elastic

    def refuse_changes(self, contents: Contents[Tensors]) -> None:
        """Check nothing: the reduction itself changes the gradients."""

    def install(self, contents: Contents[Tensors]) -> None:
        """Make the results the gradients, where they are not the same tensors already."""
        for entry, result in zip(self.entries, contents.result, strict=True):
            parameter = entry.parameter
            if parameter.grad is not result and (parameter.requires_grad or parameter.grad is not None):
                parameter.grad = result

    def _make_operation(self, comm: Communicator, contents: Contents[Tensors], name: str) -> Operation[Tensors]:
        del contents
        gradients = [_find_gradient(entry.parameter) for entry in self.entries]
        return Allreduce(gradients, self._how, comm.members, name, None if self._keeps else gradients)


def _find_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter's gradient, or zeros."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.shape, dtype=find_dtype(parameter), device=parameter.device)
    return gradient


@dataclass(slots=True, eq=False)
class CompressedContents(Contents[Tensors]):
    """The contents of a bucket of compressed gradients in one step.

    contexts: what the compressor needs to decompress each gradient.
    """

    contexts: list[Any] = field(default_factory=list)


class CompressedBucket(Bucket[CompressedContents]):
    """Compressed gradients. Sparse ones are made dense before compression, and sparse again at the end.

    Args:
        entries, number, note: see `Bucket`.
        settings: how the compressed tensors are combined.
        compressor: the user's compressor.
        sparse_dims: the number of sparse dimensions of each entry's result; 0 for a dense result.
    """

    make_contents = CompressedContents

    def __init__(
        self,
        entries: Sequence[Entry],
        number: int,
        note: str,
        *,
        settings: Settings,
        compressor: Compressor,
        sparse_dims: Sequence[int],
    ) -> None:
        super().__init__(entries, number, note)
        self._how = settings.how
        self._compressor = compressor
        self._sparse_dims = tuple(sparse_dims)

    def install(self, contents: CompressedContents) -> None:
        """Decompress the results into new gradients."""
        results = zip(self.entries, contents.result, contents.contexts, self._sparse_dims, strict=True)
        for entry, result, context, sparse_dims in results:
            parameter = entry.parameter
            if parameter.grad is None and not parameter.requires_grad:
                continue
            gradient = self._compressor.decompress(result, context).to(find_dtype(parameter))
            if sparse_dims:
                parameter.grad = gradient.to_sparse(sparse_dims)
            else:
                parameter.grad = gradient

    def _make_operation(self, comm: Communicator, contents: CompressedContents, name: str) -> Operation[Tensors]:
        compressed = [self._compressor.compress(_make_dense(entry.parameter)) for entry in self.entries]
        contents.contexts = [context for _, context in compressed]
        return Allreduce([tensor for tensor, _ in compressed], self._how, comm.members, name)


def _make_dense(parameter: torch.Tensor) -> torch.Tensor:
    gradient = _find_gradient(parameter).detach()
    if gradient.layout is torch.strided:
        return gradient
    return gradient.to_dense()


class SparseBucket(Bucket[Contents[torch.Tensor]]):
    """A parameter whose gradient is sparse on some rank. A rank without a gradient contributes no elements.

    Args:
        entry: the parameter's entry.
        number, note: see `Bucket`.
        settings: how the gradients are combined: a sum or an average. The factors cancel out in an average.
        sparse_dims: the number of sparse dimensions of the gradient, the same on all ranks.
    """

    make_contents = Contents
    kind = "allgather"

    def __init__(self, entry: Entry, number: int, note: str, settings: Settings, sparse_dims: int) -> None:
        super().__init__([entry], number, note)
        self._reduction = settings.how.reduction
        self._sparse_dims = sparse_dims
        self._dtype = settings.choose_dtype(find_dtype(entry.parameter))

    def install(self, contents: Contents[torch.Tensor]) -> None:
        """Replace the gradient by the result, which is sparse and not coalesced, like a gradient of autograd."""
        (entry,) = self.entries
        if entry.parameter.requires_grad or entry.parameter.grad is not None:
            entry.parameter.grad = contents.result.to(find_dtype(entry.parameter))

    def _make_operation(
        self, comm: Communicator, contents: Contents[torch.Tensor], name: str
    ) -> Operation[torch.Tensor]:
        del contents
        return SparseAllreduce(self._make_sparse(), self._reduction, comm.members, name)

    def _make_sparse(self) -> torch.Tensor:
        """The gradient with the negotiated number of sparse dimensions."""
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
            if gradient.layout is not torch.strided:
                gradient = gradient.to_dense()
            gradient = gradient.to_sparse(dims)
        return gradient.to(self._dtype)
