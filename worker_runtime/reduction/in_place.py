"""A bucket of gradients that are reduced where they lie.

Another framework's gradients have their places in its own memory, and no tensor of ours can take one. So the large ones
are handed to the group as they are, and only small ones are packed. In a job that outlives its workers the local
gradients must stay until the step is committed: there the results are new tensors, which whoever drives the reducer
copies to their places afterwards.
"""

from collections.abc import Sequence

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.coordination.operation import Operation
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.seat import Seat
from worker_runtime.reduction.settings import Settings


class InPlaceBucket(Bucket):
    """Dense gradients that travel in their own dtype.

    Args:
        entries, number, note: as for every bucket.
        settings: how to combine.
        seat: among whom.
    """

    def __init__(self, entries: Sequence[Entry], number: int, note: str, settings: Settings, seat: Seat) -> None:
        super().__init__(entries, number, note)
        reduction = settings.how.reduction
        factors = settings.find_factors(seat.members.size)
        self._how = Combination(Reduction.SUM if reduction is Reduction.AVERAGE else reduction, *factors)
        self._keeps = seat.is_elastic
        self._results: list[torch.Tensor] = []

    def take(self, entry: Entry) -> None:
        """It travels when all are there."""
        entry.kept = entry.parameter.grad

    def refuse_changes(self) -> None:
        """They change while they travel."""

    def _give(self) -> None:
        """Let the results be the gradients; most of them are already."""
        for entry, result in zip(self.entries, self._results, strict=True):
            parameter = entry.parameter
            if parameter.grad is not result and (parameter.requires_grad or parameter.grad is not None):
                parameter.grad = result

    def reset(self) -> None:
        """Forget the step."""
        super().reset()
        self._results = []

    def _make_operation(self, seat: Seat, name: str) -> Operation[list[torch.Tensor]]:
        gradients = [_find_gradient(entry.parameter) for entry in self.entries]
        return Allreduce(gradients, self._how, seat.members, name, None if self._keeps else gradients)

    def _receive(self, result: list[torch.Tensor]) -> None:
        self._results = result


def _find_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The parameter's gradient, or zeros."""
    gradient = parameter.grad
    return (
        torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device) if gradient is None else gradient
    )
