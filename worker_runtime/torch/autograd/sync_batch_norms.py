"""Batch normalization over the batches of all ranks, and its gradients.

Let the batches of all ranks together have n values per channel, with mean m and standard deviation s. The result is
(x - m) / s. For a gradient g of it, the gradient of x is (g - mean(g) - (x - m) / s * mean(g * (x - m) / s)) / s, with
means over all ranks' batches. Statistics are computed in at least float32. The ranks' statistics are combined by their
counts (Chan et al., "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979), which is exact
also for batches of different sizes, or empty ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from worker_runtime.api.calls import Call, make_allreduce
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.combination import SUM
from worker_runtime.torch.autograd.adjoints import Ran


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and variance of each channel over all ranks, of shape (channels,), and the number of values per channel.

    own: this rank's number of values per channel, of shape (1,).
    """

    mean: torch.Tensor
    variance: torch.Tensor
    count: int | torch.Tensor
    own: torch.Tensor


def gather_statistics(call: Call, x: torch.Tensor) -> Statistics:
    """The statistics over all ranks' batches; a collective.

    Args:
        call: the call.
        x: this rank's batch, of shape (batch, channels, ...).

    Raises:
        ValueError: all ranks' batches are empty, or have together one value per channel.
        HorovodInternalError: the ranks have different dtypes or numbers of channels, or the operation failed.
    """
    x, channels = x.detach(), x.shape[1]
    count = 0
    if channels:
        count = x.numel() // channels
    dtype = torch.promote_types(x.dtype, torch.float32)
    if count:
        mean, variance = _measure_batch(x, dtype)
    else:
        mean = variance = x.new_zeros(channels, dtype=torch.float64)

    own = x.new_full((1,), count, dtype=torch.float64)
    message = torch.cat([own, mean, variance])
    # The number of its rows, which have no elements, tells the host each rank's count without reading the device.
    counted = x.new_empty((count, 0))
    note = f"{channels} channels of {str(x.dtype).removeprefix('torch.')}"
    operation = Allgather((message.unsqueeze(0), counted), call.among, call.name, note=note)
    (gathered, _), (_, rows) = call.engine.run(operation)
    total = sum(rows)
    if total == 0:
        raise ValueError(f"{call.name}: the batches of all ranks are empty")
    if total == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {tuple(x.shape)} on all ranks")
    weights, means, variances = gathered[:, :1] / total, gathered[:, 1 : channels + 1], gathered[:, channels + 1 :]
    overall = (weights * means).sum(0)
    variance = (weights * (variances + (means - overall).square())).sum(0)
    return Statistics(overall.to(dtype), variance.to(dtype), total, own)


def _measure_batch(x: torch.Tensor, dtype: torch.dtype) -> Sequence[torch.Tensor]:
    """Mean and variance of each channel of this rank's batch, computed in `dtype`, as float64.

    On the CPU torch's kernel takes four times as long as these sums. The mean of the differences from the rounded mean
    corrects it.
    """
    if x.is_cuda:
        return [each.to(torch.float64) for each in torch.batch_norm_update_stats(x, None, None, 0.0)]
    others = [dimension for dimension in range(x.dim()) if dimension != 1]
    x = x.to(dtype)
    mean = x.mean(others)
    differences = x - _spread(mean, x)
    rest = differences.mean(others).to(torch.float64)
    variance = differences.square_().mean(others).to(torch.float64) - rest.square()
    return mean.to(torch.float64) + rest, variance.clamp_(min=0)


def measure(call: Call, tensors: Sequence[torch.Tensor]) -> Ran:
    """`gather_statistics` for a graph: counts, mean and variance in one tensor. Its adjoint sums over the ranks."""
    found = gather_statistics(call, tensors[0])
    count = found.mean.new_full((1,), float(found.count), dtype=torch.float64)
    return Ran([torch.cat([count, found.own, found.mean.to(torch.float64), found.variance.to(torch.float64)])], _add)


def add_over_ranks(call: Call, sums: torch.Tensor) -> torch.Tensor:
    """Sum over the ranks, for the gradient of this call; a collective."""
    (totals,) = _add(call.derive("backward"), [sums])
    return totals


def _add(call: Call, sums: Sequence[torch.Tensor], _: Sequence[torch.Tensor] = ()) -> Sequence[torch.Tensor]:
    return call.engine.run(make_allreduce(call, sums, SUM))


class SyncNormalize(Function):
    """(x - m) / s * weight + bias, where m and s depend on all ranks' x; differentiable.

    It uses torch's kernels for evaluation, with given mean and variance.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: Statistics,
        eps: float,
        add: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Normalize; the result has the dtype of x."""
        mean, variance = statistics.mean, statistics.variance
        ctx.save_for_backward(x, weight, mean, variance)  # not the result, which a ReLU may overwrite
        ctx.add, ctx.own, ctx.eps = add, statistics.own, eps
        # The kernels of torch for CUDA reject an empty batch.
        if not x.numel():
            return torch.empty_like(x)
        scale, shift = (None if each is None else each.to(mean.dtype) for each in (weight, bias))
        result: torch.Tensor
        result, _, _ = torch.native_batch_norm(x, scale, shift, mean, variance, training=False, momentum=0.0, eps=eps)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradients; a collective if x requires a gradient."""
        x, weight, mean, variance = ctx.saved_tensors
        if weight is None:
            scale = torch.ones_like(mean)
        else:
            scale = weight.to(mean.dtype)
        inverse = torch.rsqrt(variance + ctx.eps)

        scale_gradient = shift_gradient = torch.zeros_like(mean)
        if x.numel():
            _, scale_gradient, shift_gradient = torch.ops.aten.native_batch_norm_backward(
                gradient,
                x,
                scale,
                mean,
                variance,
                mean,  # the same once more, as a kernel of CUDA reads it
                inverse,
                train=False,
                eps=ctx.eps,
                output_mask=[False, True, True],
            )

        result = None
        if ctx.needs_input_grad[0]:
            # Counted anew: where a rank was lost since, the means are those over the other ranks' batches.
            sums = ctx.add(torch.cat([shift_gradient, scale_gradient, ctx.own.to(mean.dtype)]))
            first, second = (sums[:-1] / sums[-1:]).tensor_split(2)
            result = gradient
            if x.numel():
                slope = scale * inverse
                result, _, _ = torch.native_batch_norm(
                    x, -slope * second, -slope * first, mean, variance, training=False, momentum=0.0, eps=ctx.eps
                )
                result.addcmul_(gradient, _spread(slope, x))
            result = result.to(x.dtype)

        if weight is None:
            return result, None, None, None, None, None
        return result, scale_gradient.to(weight.dtype), shift_gradient.to(weight.dtype), None, None, None


def _spread(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Values of the channels in a shape that broadcasts with x."""
    return values.view(1, -1, *([1] * (x.dim() - 2)))
