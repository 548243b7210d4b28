"""Parameters with gradients that are easily recognised, and reducers for them."""

from typing import Any

import pytest
import torch

from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.reduction import GradientReducer, Settings
from worker_runtime.reduction.replicas import ReplicaCheck

SMALL = (16, 16)  # bytes: each parameter of four floats has a bucket of its own
warm_up_and_overlap = pytest.mark.parametrize("is_warm", [False, True], ids=["warm-up", "overlap"])


def make_parameters(count: int = 3) -> list[torch.Tensor]:
    """Four ones, four twos, ..."""
    return [torch.full((4,), float(index + 1), requires_grad=True) for index in range(count)]


def make_reducer(parameters: list[torch.Tensor], engine: ThreadEngine, **settings: Any) -> GradientReducer:
    """A reducer of p0, p1, ...; what is popped is its own, the others are `Settings`."""
    passes = settings.pop("passes", 1)
    groups = settings.pop("groups", None)
    process_set = settings.pop("process_set", 0)
    interval = settings.pop("interval", 0)
    check = settings.pop("check", None)
    finite = settings.pop("finite", None)

    def list_named() -> list[tuple[str, torch.Tensor]]:
        return [(f"p{index}", parameter) for index, parameter in enumerate(parameters)]

    return GradientReducer(
        list_named,
        lambda: engine,
        Settings(**{"bounds": SMALL, **settings}),
        passes=passes,
        groups=groups,
        find_set=lambda: process_set,
        check=ReplicaCheck(list_named, interval) if interval else check,
        finite=finite,
    )


def begin(
    engine: ThreadEngine,
    count: int,
    *,
    is_warm: bool = False,
    **settings: Any,
) -> tuple[GradientReducer, list[torch.Tensor]]:
    """A reducer and its parameters; where it is warm, it asks for buckets during backward."""
    parameters = make_parameters(count)
    reducer = make_reducer(parameters, engine, **settings)
    if is_warm:
        warm_up(reducer, parameters, engine)
    return reducer, parameters


def train(reducer: GradientReducer, parameters: list[torch.Tensor], factor: float = 1.0) -> list[list[float]]:
    """One step in which each gradient is `factor` on this rank; the averages."""
    backward(parameters, factor)
    reducer.synchronize()
    return list_gradients(parameters)


def backward(parameters: list[torch.Tensor], factor: float = 1.0) -> None:
    """Let each gradient be a new one, of `factor`."""
    for parameter in parameters:
        parameter.grad = None
    sum((parameter * factor).sum() for parameter in parameters).backward()


def warm_up(reducer: GradientReducer, parameters: list[torch.Tensor], engine: ThreadEngine) -> None:
    """Take the steps after which buckets are asked for during backward."""
    for _ in range(2):
        train(reducer, parameters)
    for parameter in parameters:
        parameter.grad = None
    engine.asked.clear()


def list_gradients(parameters: list[torch.Tensor]) -> list[list[float]]:
    """The gradients' values."""
    return [parameter.grad.tolist() for parameter in parameters]
