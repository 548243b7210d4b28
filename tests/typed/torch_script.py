"""A PyTorch user's script as a type checker sees it: checked with the packages, never run.

What is right passes, with the types that a user's editor shows; what is wrong is an error. mypy reports when one of the
ignored errors below is no longer one.
"""

from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader

import worker_runtime.torch as hvd


def train(model: torch.nn.Module) -> None:
    """The five steps that distribute a script."""
    hvd.init()
    assert_type(hvd.local_rank(), int)
    plain = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    assert_type(optimizer, torch.optim.SGD)
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def prepare(model: torch.nn.Linear, optimizer: torch.optim.Adam, loader: DataLoader[int]) -> None:
    """The same in one call, which returns the types of its arguments."""
    assert_type(hvd.prepare(model), torch.nn.Linear)
    assert_type(hvd.prepare(model, optimizer, scale_lr=True), tuple[torch.nn.Linear, torch.optim.Adam])
    prepared = hvd.prepare(model, optimizer, loader, state=hvd.elastic.TorchState(epoch=0))
    assert_type(prepared, tuple[torch.nn.Linear, torch.optim.Adam, DataLoader[int]])
    assert_type(hvd.prepare(model, loader=loader), tuple[torch.nn.Linear, DataLoader[int]])
    assert_type(hvd.split_data(loader, seed=1), DataLoader[int])
    assert_type(hvd.describe_device(hvd.pin_device()), str)


def combine(tensor: torch.Tensor) -> None:
    """Collectives return the type of their argument."""
    assert_type(hvd.allreduce(tensor, op=hvd.Sum), torch.Tensor)
    assert_type(hvd.allgather(tensor, name="parts"), torch.Tensor)
    assert_type(hvd.broadcast(tensor, root_rank=0), torch.Tensor)
    assert_type(hvd.allgather_object({"rank": hvd.rank()}), list[Any])
    hvd.barrier()


def mistake(tensor: torch.Tensor, model: torch.nn.Module) -> None:
    """What an editor underlines."""
    hvd.allreduce([1.0, 2.0])  # type: ignore[arg-type]  # no tensor
    hvd.allreduce(tensor, op="sum")  # type: ignore[arg-type]  # hvd.Sum is meant
    hvd.broadcast(tensor)  # type: ignore[call-arg]  # from whom?
    hvd.DistributedOptimizer(model)  # type: ignore[type-var]  # no optimizer
    hvd.prepare(model, model)  # type: ignore[call-overload]  # no optimizer
    hvd.prepared(model)  # type: ignore[attr-defined]  # prepare is meant
    hvd.rank() + "0"  # type: ignore[operator]  # a number and a text
