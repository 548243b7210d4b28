"""Batch normalization over the batches of all ranks."""

from functools import partial

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.torch.autograd.sync_batch_norms import SyncNormalize, add_over_ranks, gather_statistics

_MIN_DIMENSIONS = 2


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks of a process set, on the CPU and on CUDA.

    Horovod's version needs CUDA. In training, mean, variance and running statistics are computed over the
    concatenation of the ranks' batches. The batches may have different sizes, and be empty on some ranks. Forward and
    backward are collectives: all ranks of the set must run both. The gradients of weight and bias are those of this
    rank's batch; the distributed optimizer averages them. In evaluation with running statistics, and in a set of one
    rank, the layer equals torch's BatchNorm.

    Differentiable once in the input, the weight and the bias.

    Args:
        num_features: the number of channels C of an input of shape (N, C, ...).
        eps: added to the variance.
        momentum: weight of a new batch in the running statistics; None computes a cumulative average.
        affine: whether the layer has a weight and a bias for each channel.
        track_running_stats: whether the layer keeps running statistics.
        process_set: the ranks that take part.
        **factory: `device` and `dtype` of the parameters.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        **factory: torch.device | torch.dtype | str | None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **factory)  # type: ignore[arg-type]  # device and dtype
        self.process_set = process_set

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize: (x - mean) / sqrt(variance + eps) * weight + bias.

        Args:
            x: a floating-point tensor of shape (N, C, ...); C and the dtype are the same on all ranks.

        Returns:
            A tensor of the same shape and dtype.

        Raises:
            ValueError: the input has fewer than two dimensions, or another number of channels; all ranks together have
                only one value for each channel; or this rank is not in the set.
            HorovodInternalError: the ranks give different dtypes or numbers of channels, or Horovod has not been
                initialized.
        """
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        if torch.compiler.is_compiling():
            self._check_input_dim(x)
            from worker_runtime.torch.graph_ops import TOKEN  # noqa: PLC0415 - few programs compile

            given = TOKEN, x, self.weight, self.bias, self.eps, self.process_set.key
            result, mean, variance, count = torch.ops.hvdrun.sync_batch_norm_v2(*given)
            return self._track(result, mean, variance, count)
        call = begin_call("sync_batch_norm", None, self.process_set)
        if call.among.size == 1:
            return super().forward(x)
        with call.preparing():
            self._check_input_dim(x)
        statistics = gather_statistics(call, x)
        how = x, self.weight, self.bias, statistics, self.eps, partial(add_over_ranks, call)
        result = SyncNormalize.apply(*how)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self._track(result, statistics.mean, statistics.variance, statistics.count)

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < _MIN_DIMENSIONS:
            raise ValueError(f"expected at least 2D input (got {x.dim()}D input)")
        if x.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got an input of shape {tuple(x.shape)}")

    def _track(
        self, result: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, count: int | torch.Tensor
    ) -> torch.Tensor:
        """Update the running statistics in training, and return the result."""
        if (
            not self.training
            or self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return result
        dtype = self.running_mean.dtype
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            weight = (1.0 / self.num_batches_tracked).to(dtype) if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1))
            self.running_mean.lerp_(mean.to(dtype), weight)
            self.running_var.lerp_(unbiased.to(dtype), weight)
        return result
