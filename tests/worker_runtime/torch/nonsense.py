"""Calls of the API that no program can mean, whatever the rank: each is to be refused at the call."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import worker_runtime.torch as hvd

Call = tuple[str, Callable[[], object]]

MANY = 10**400
ONE = torch.ones(2)


class BadCompression:
    """Makes no tensor."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[Any, None]:
        """A list."""
        return tensor.tolist(), None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: None) -> torch.Tensor:
        """Never reached."""
        del context
        return tensor


def with_gradient(tensor: object, **arguments: object) -> object:
    """An allreduce that autograd takes part in."""
    is_plain = isinstance(tensor, torch.Tensor) and not tensor.is_nested and tensor.is_floating_point()
    wants = tensor.clone().requires_grad_() if is_plain else tensor  # type: ignore[attr-defined]  # it is a tensor
    return hvd.allreduce(wants, **arguments)  # type: ignore[arg-type]  # nonsense


def optimize(model: torch.nn.Module, **arguments: object) -> object:
    """A distributed optimizer."""
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), **arguments)  # type: ignore[arg-type]  # the same


REDUCING: tuple[Callable[..., object], ...] = (
    hvd.allreduce,
    hvd.allreduce_,
    hvd.allreduce_async,
    hvd.allreduce_async_,
    with_gradient,
    hvd.reducescatter,
    hvd.reducescatter_async,
)
MOVING: tuple[Callable[..., object], ...] = (
    hvd.allgather,
    hvd.allgather_async,
    hvd.alltoall,
    hvd.alltoall_async,
)
BROADCASTING: tuple[Callable[..., object], ...] = (
    hvd.broadcast,
    hvd.broadcast_,
    hvd.broadcast_async,
    hvd.broadcast_async_,
)
GROUPED: tuple[Callable[..., object], ...] = (
    hvd.grouped_allreduce,
    hvd.grouped_allreduce_,
    hvd.grouped_allreduce_async,
    hvd.grouped_allreduce_async_,
    hvd.grouped_reducescatter,
    hvd.grouped_reducescatter_async,
    hvd.grouped_allgather,
    hvd.grouped_allgather_async,
)


def describe(value: object) -> str:
    """For the messages of a test."""
    return f"{type(value).__name__} {str(value)[:40]}"


def list_reductions() -> Iterator[Call]:
    """Factors and operations."""
    factors = (None, "a", "0.5", b"1", 1j, [1.0], torch.ones(3), MANY, float("nan"), object(), np.ones(2))
    for function in REDUCING:
        for factor in factors:
            for which in ("prescale_factor", "postscale_factor"):
                title = f"{function.__name__} {which} {describe(factor)}"
                yield title, partial(function, ONE, op=hvd.Sum, **{which: factor})
        for op in (99, -1, "Sum", [1], object()):
            yield f"{function.__name__} op {describe(op)}", partial(function, ONE, op=op)
        integers = torch.ones(2, dtype=torch.int32)
        yield f"{function.__name__} Adasum of integers", partial(function, integers, op=hvd.Adasum)


def list_tensors() -> Iterator[Call]:
    """What is no tensor, or not one that can be communicated; and lists that are none."""
    with warnings.catch_warnings(action="ignore"):  # that nested tensors may change
        nested = torch.nested.nested_tensor([ONE], layout=torch.strided)
    away = torch.empty(2, device="meta")
    for function in (*REDUCING, *MOVING, *(partial(each, root_rank=0) for each in BROADCASTING)):
        for value in (None, 5, "x", [1.0, 2.0], ONE.numpy(), nested, ONE.to_sparse(), away):
            yield f"{function} of {type(value).__name__}", partial(function, value)
    for function in GROUPED:
        for value in (None, 5, "x", ONE, [1.0, 2.0], [ONE, None], [nested], [], [ONE, ONE.to_sparse()], [ONE, away]):
            yield f"{function.__name__} of {type(value).__name__}", partial(function, value)
    for value in (ONE, None, "x"):
        yield f"sparse_allreduce_async of {describe(value)}", partial(hvd.sparse_allreduce_async, value, "x", hvd.Sum)


def list_places() -> Iterator[Call]:
    """Names and process sets."""
    for function in (*REDUCING, *MOVING, *(partial(each, root_rank=0) for each in BROADCASTING)):
        for name in (7, b"x", object(), "x" * 70_000, "\udc80"):
            yield f"{function} name {describe(name)!r}", partial(function, ONE, name=name)
        for process_set in (0, None, [0, 1], hvd.ProcessSet([0]), "global"):
            yield f"{function} in {process_set}", partial(function, ONE, process_set=process_set)
    for function in GROUPED:
        yield f"{function.__name__} name", partial(function, [ONE], name=5)
        yield f"{function.__name__} in ranks", partial(function, [ONE], process_set=[0, 1])
    for process_set in (0, None, [0, 1], hvd.ProcessSet([0])):
        yield f"barrier in {process_set}", partial(hvd.barrier, process_set)
        yield f"broadcast_object in {process_set}", partial(hvd.broadcast_object, 1, process_set=process_set)
        yield f"allgather_object in {process_set}", partial(hvd.allgather_object, 1, process_set=process_set)
    for process_set in (0, None, "x"):
        yield f"remove_process_set {process_set}", partial(hvd.remove_process_set, process_set)
    for ranks in (5, None, [0, 9], [], [0, 0], ["a"], [0.0]):
        yield f"add_process_set {ranks}", partial(hvd.add_process_set, ranks)


def list_details() -> Iterator[Call]:
    """Roots, splits, compressors, handles."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(ONE.clone())], 0.1)
    for root in (None, "a", 0.0, 2, -1, MANY, [0], torch.ones(2), torch.tensor(0.5)):
        for function in BROADCASTING:
            yield f"{function.__name__} root {describe(root)}", partial(function, ONE, root)
        yield f"broadcast_object root {describe(root)}", partial(hvd.broadcast_object, 1, root)
        yield f"broadcast_parameters root {describe(root)}", partial(hvd.broadcast_parameters, [ONE], root)
        state = partial(hvd.broadcast_optimizer_state, optimizer, root)
        yield f"broadcast_optimizer_state root {describe(root)}", state
    for splits in (5, "ab", [1.0, 1.0], [1], [MANY, 0], [-1, 3], [None, 2], ONE, torch.ones(1, 2).int(), {}):
        for function in (hvd.alltoall, hvd.alltoall_async):
            yield f"{function.__name__} splits {describe(splits)}", partial(function, ONE, splits)
    for compression in ("fp16", None, 16, torch.float16, BadCompression):
        for function in (hvd.allreduce, hvd.reducescatter):
            yield f"{function.__name__} compression {compression}", partial(function, ONE, compression=compression)
        for function in (hvd.grouped_allreduce, hvd.grouped_reducescatter):
            yield f"{function.__name__} compression {compression}", partial(function, [ONE], compression=compression)
    for handle in (None, "x", [], 99_999, -1, 1.5):
        yield f"poll {handle}", partial(hvd.poll, handle)
        yield f"synchronize {handle}", partial(hvd.synchronize, handle)


def list_optimizers() -> Iterator[Call]:
    """Arguments of the distributed optimizer and of what prepares it."""
    model = torch.nn.Linear(2, 2)
    foreign = torch.nn.Parameter(ONE.clone())
    weight, bias = model.weight, model.bias
    pair_twice = [("a", ONE), ("a", ONE)]
    for parameters in (None, 3, "x", {"a": 3}, [("a", ONE, 1)], [(1, ONE)], pair_twice, {1: ONE}, [None]):
        yield f"broadcast_parameters {describe(parameters)}", partial(hvd.broadcast_parameters, parameters, 0)
    for plain in (model, None, 5):
        yield f"broadcast_optimizer_state {plain}", partial(hvd.broadcast_optimizer_state, plain, 0)
        yield f"DistributedOptimizer {plain}", partial(hvd.DistributedOptimizer, plain)
    arguments: dict[str, tuple[object, ...]] = {
        "backward_passes_per_step": (0, -1, 1.5, "1", None),
        "gradient_predivide_factor": (0, 0.0, None, "a", float("nan"), float("inf"), 1j, ONE, MANY, 1e-320),
        "groups": (-1, "x", 1.5, [5], [weight], [["x"]], [[ONE]], [[foreign]], [[weight], [weight]]),
        "compression": ("fp16", None, 16, torch.float16),
        "process_set": (0, None, [0, 1], hvd.ProcessSet([0])),
        "op": (99, "Sum", object()),
        "named_parameters": (
            5,
            [weight, bias],
            [("a", weight)],
            [("a", weight), ("a", bias)],
            [("a", weight), ("b", bias), ("z", weight)],
            [(1, weight), (2, bias)],
            [("a", 1), ("b", 2)],
            [("a",), ("b",)],
        ),
    }
    for argument, values in arguments.items():
        for value in values:
            yield f"{argument}={describe(value)}", partial(optimize, model, **{argument: value})
    yield "predivide a sum", partial(optimize, model, gradient_predivide_factor=2.0, op=hvd.Sum)
    yield "Adasum of a set", partial(optimize, model, op=hvd.Adasum, process_set=hvd.ProcessSet([0]))


def list_calls() -> list[Call]:
    """All of them."""
    lists = (list_reductions, list_tensors, list_places, list_details, list_optimizers)
    return [call for each in lists for call in each()]
