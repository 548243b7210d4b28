"""What a type checker sees in a user's script: it is checked by mypy, and never run.

Arguments are given by their places, in Horovod's order, which differs between the frameworks. Each unused `ignore` is
an error, so that those here prove that a wrong argument is one.
"""

from typing import assert_type

import torch

import hvdrun.torch
import worker_runtime.mxnet as mxnet_hvd
import worker_runtime.torch as hvd

EVERYONE = hvd.global_process_set


def use_torch(x: torch.Tensor) -> None:
    """The functions of tensors."""
    group, sets = [x, x], hvd.add_process_set([0])
    assert_type(hvd.allreduce(x, None, "x", hvd.Compression.fp16, hvd.Sum, 1.0, 1.0, EVERYONE), torch.Tensor)
    assert_type(hvd.allreduce_(x, None, "x", hvd.Sum, 1.0, 1.0, sets), torch.Tensor)
    assert_type(hvdrun.torch.allreduce(x, op=hvdrun.torch.Sum), torch.Tensor)
    assert_type(hvd.allreduce_async(x, None, "x", hvd.Sum, 1.0, 1.0, EVERYONE), int)
    assert_type(hvd.allreduce_async_(x, None, "x", hvd.Sum, 1.0, 1.0, EVERYONE), int)
    assert_type(hvd.grouped_allreduce(group, None, "x", hvd.Compression.none, hvd.Sum), list[torch.Tensor])
    assert_type(hvd.grouped_allreduce_(tensors=group, op=hvd.Sum), list[torch.Tensor])
    assert_type(hvd.allgather(x, "x", EVERYONE), torch.Tensor)
    assert_type(hvd.grouped_allgather_async(group, name="x"), int)
    assert_type(hvd.broadcast_(x, 0, "x", EVERYONE), torch.Tensor)
    assert_type(hvd.broadcast_async_(x, root_rank=0), int)
    assert_type(hvd.alltoall(x, [1, 1], "x", EVERYONE), torch.Tensor | tuple[torch.Tensor, torch.Tensor])
    assert_type(hvd.reducescatter(x, "x", hvd.Compression.none, hvd.Sum, EVERYONE, 1.0, 1.0), torch.Tensor)
    assert_type(hvd.reducescatter_async(x, "x", hvd.Sum, EVERYONE, 1.0, 1.0), int)
    assert_type(hvd.sparse_allreduce_async(x, "x", hvd.Sum)(), torch.Tensor)
    assert_type(hvd.barrier(sets), None)
    assert_type(hvd.join(), int)
    assert_type(hvd.poll(1), bool)
    hvd.allreduce_(x, None, "x", hvd.Compression.fp16)  # type: ignore[arg-type]  # what works in place is not compressed
    hvd.allreduce_async(x, nme="x")  # type: ignore[call-arg]  # there is no such argument
    hvd.broadcast(x)  # type: ignore[call-arg]  # it has no default root


def use_mxnet(x: object) -> None:
    """The functions of arrays, of which MXNet says no type."""
    assert_type(mxnet_hvd.allreduce_async_(x, None, "x", 0, 1.0, 1.0, EVERYONE, mxnet_hvd.Sum), int)
    assert_type(mxnet_hvd.grouped_allgather_async([x], "x", 0, EVERYONE), int)
    assert_type(mxnet_hvd.reducescatter_async(x, mxnet_hvd.Sum, "x", 0, EVERYONE, 1.0, 1.0), int)
    assert_type(mxnet_hvd.barrier(EVERYONE), None)
    mxnet_hvd.allreduce(x, compression=None)  # type: ignore[call-arg]  # PyTorch's argument
    mxnet_hvd.broadcast_(x, 0, "x", "0")  # type: ignore[arg-type]  # a text is no priority
