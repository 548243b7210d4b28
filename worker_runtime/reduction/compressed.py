"""A bucket of gradients that each pass through the user's own compressor.

What a compressor makes is known only when it has run, so there is no memory to prepare: its tensors travel as one
operation, and the results are decompressed one by one.
"""

from collections.abc import Sequence
from typing import Any

import torch

from worker_runtime.collectives import Allreduce
from worker_runtime.coordination.operation import Operation
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.settings import Compressor, Settings


class CompressedBucket(Bucket):
    """Gradients that travel as a compressor makes them; sparse ones are made dense first, and sparse again at the end.

    Args:
        entries, number, note: as for every bucket.
        settings: how to combine what the compressor makes.
        compressor: the user's.
    """

    def __init__(
        self, entries: Sequence[Entry], number: int, note: str, settings: Settings, compressor: Compressor
    ) -> None:
        super().__init__(entries, number, note)
        self._how = settings.how
        self._compressor = compressor
        self._contexts: list[Any] = []
        self._results: list[torch.Tensor] = []

    def take(self, entry: Entry) -> None:
        """It is compressed when all are there."""
        entry.kept = entry.parameter.grad

    def _give(self) -> None:
        """Decompress the results into new gradients."""
        for entry, result, context in zip(self.entries, self._results, self._contexts, strict=True):
            parameter = entry.parameter
            if parameter.grad is None and not parameter.requires_grad:
                continue
            gradient = self._compressor.decompress(result, context).to(parameter.dtype)
            sparse_dims = entry.find_sparse_dims()
            parameter.grad = gradient.to_sparse(sparse_dims) if sparse_dims else gradient

    def reset(self) -> None:
        """Forget the step."""
        super().reset()
        self._contexts, self._results = [], []

    def _make_operation(self, comm: Communicator, name: str) -> Operation[list[torch.Tensor]]:
        compressed = [self._compressor.compress(_make_dense(entry.parameter)) for entry in self.entries]
        self._contexts = [context for _, context in compressed]
        return Allreduce([tensor for tensor, _ in compressed], self._how, comm.members, name)

    def _receive(self, result: list[torch.Tensor]) -> None:
        self._results = result


def _make_dense(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()
