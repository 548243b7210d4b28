"""Batch normalisation over the batches of all ranks, and its gradients.

With the batch of all ranks together of n values per channel, mean m and standard deviation s, the result is
(x - m) / s. For a gradient g of it, the gradient of x is (g - mean(g) - (x - m) / s * mean(g * (x - m) / s)) / s, the
means over the batch of all ranks. Statistics are computed in at least float32; the ranks' are combined by their counts
(Chan et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), which is exact also
where the batches are of different sizes, or empty.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from worker_runtime.api.calls import Call, make_allreduce
from worker_runtime.collectives import SUM, Allgather


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of each channel of the batch of all ranks: mean and variance (of shape (channels,)); and how many values."""

    mean: torch.Tensor
    variance: torch.Tensor
    count: int


def gather_statistics(call: Call, x: torch.Tensor) -> Statistics:
    """The statistics of the batch of all ranks; a collective.

    Args:
        call: where, and under what name.
        x: this rank's batch, of shape (batch, channels, ...).

    Raises:
        ValueError: all ranks' batches are empty.
        HorovodInternalError: the ranks do not agree on dtype or channels, or the operation failed.
    """
    channels = x.shape[1]
    rows = x.detach().to(torch.promote_types(x.dtype, torch.float32)).transpose(0, 1).reshape(channels, -1)
    count = rows.shape[1]
    mean = rows.mean(1) if count else rows.new_zeros(channels)
    squares = (rows - mean.unsqueeze(1)).square().sum(1)
    message = torch.cat([rows.new_tensor([count]).to(torch.float64), mean.to(torch.float64), squares.to(torch.float64)])
    note = f"{channels} channels of {str(x.dtype).removeprefix('torch.')}"
    ((gathered, _),) = call.executor.run(Allgather((message.unsqueeze(0),), call.among, call.name, note=note))
    counts, means, all_squares = gathered[:, :1], gathered[:, 1 : channels + 1], gathered[:, channels + 1 :]
    total = counts.sum()
    if total == 0:
        raise ValueError(f"{call.name}: the batches of all ranks are empty")
    overall = (counts * means).sum(0) / total
    variance = (all_squares + counts * (means - overall).square()).sum(0) / total
    return Statistics(overall.to(rows.dtype), variance.to(rows.dtype), int(total))


class SyncNormalize(Function):
    """(x - m) / s, differentiable: m and s depend on all ranks' x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, statistics: Statistics, eps: float, call: Call) -> torch.Tensor:  # noqa: ANN401 - torch gives its class no type
        """Normalise; the result has the dtype of the statistics."""
        inverse = torch.rsqrt(statistics.variance + eps)
        ctx.save_for_backward(x, statistics.mean, inverse)  # not the result, which a ReLU may change in place
        ctx.call, ctx.count = call, statistics.count
        return _normalize(x, statistics.mean, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # noqa: ANN401 - as above
        """Subtract what changes mean and variance; a collective."""
        x, mean, inverse = ctx.saved_tensors
        normalized = _normalize(x, mean, inverse)
        call: Call = ctx.call.derive("backward")
        others = [dimension for dimension in range(gradient.dim()) if dimension != 1]
        sums = torch.stack([gradient.sum(others), (gradient * normalized).sum(others)])
        (totals,) = call.executor.run(make_allreduce(call, (sums,), SUM))
        first, second = totals / ctx.count
        result = (gradient - _spread(first, gradient) - normalized * _spread(second, gradient)) * _spread(
            inverse, gradient
        )
        return result.to(x.dtype), None, None, None


def _normalize(x: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    return (x - _spread(mean, x)) * _spread(inverse, x)


def _spread(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value for each channel, to be combined with x."""
    return values.view(1, -1, *([1] * (x.dim() - 2)))
