"""Calls of the API that no program can mean, whatever the rank: each is to be refused at the call."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.operations import FORMS, KINDS, NEEDED, begin

Call = tuple[str, Callable[[], object]]

MANY = 10**400
ONE = torch.ones(2)
SINGLE = [form for form in FORMS if not form.startswith("grouped_")]
GROUPED = [form for form in FORMS if form.startswith("grouped_")]
REDUCING = [form for form in SINGLE if "reduce" in form]
WITH_GRADIENT = "allreduce with gradient"


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


def describe(value: object) -> str:
    """For the messages of a test."""
    return f"{type(value).__name__} {str(value)[:40]}"


def ask(form: str, tensor: object, **arguments: object) -> Call:
    """A call of a form with one tensor, or of an allreduce that autograd takes part in."""
    title = f"{form} of {describe(tensor)} { ({name: describe(value) for name, value in arguments.items()}) }"
    if form == WITH_GRADIENT:
        is_plain = isinstance(tensor, torch.Tensor) and not tensor.is_nested and tensor.is_floating_point()
        form, tensor = "allreduce", tensor.clone().requires_grad_() if is_plain else tensor  # type: ignore[attr-defined]  # it is a tensor
    return title, partial(begin, hvd, form, tensor, **NEEDED.get(KINDS[form], {}) | arguments)


def list_reductions() -> Iterator[Call]:
    """Factors and operations."""
    factors = (None, "a", "0.5", b"1", 1j, [1.0], torch.ones(3), MANY, float("nan"), object(), np.ones(2))
    for form in (*REDUCING, WITH_GRADIENT):
        for factor in factors:
            yield ask(form, ONE, op=hvd.Sum, prescale_factor=factor)
            yield ask(form, ONE, op=hvd.Sum, postscale_factor=factor)
        for op in (99, -1, "Sum", [1], object()):
            yield ask(form, ONE, op=op)
        yield ask(form, torch.ones(2, dtype=torch.int32), op=hvd.Adasum)


def list_tensors() -> Iterator[Call]:
    """What is no tensor, or not one that can be communicated; and lists that are none."""
    with warnings.catch_warnings(action="ignore"):  # torch warns that nested tensors may change
        nested = torch.nested.nested_tensor([ONE], layout=torch.strided)
    away = torch.empty(2, device="meta")
    for form in (*SINGLE, WITH_GRADIENT):
        for value in (None, 5, "x", [1.0, 2.0], ONE.numpy(), nested, ONE.to_sparse(), away):
            yield ask(form, value)
    for form in GROUPED:
        for value in (None, 5, "x", ONE, [1.0, 2.0], [ONE, None], [nested], [], [ONE, ONE.to_sparse()], [ONE, away]):
            yield f"{form} of {type(value).__name__}", partial(getattr(hvd, form), value)
    for value in (ONE, None, "x"):
        yield f"sparse_allreduce_async of {describe(value)}", partial(hvd.sparse_allreduce_async, value, "x", hvd.Sum)


def list_places() -> Iterator[Call]:
    """Names and process sets."""
    for form in (*SINGLE, WITH_GRADIENT):
        for name in (7, b"x", object(), "x" * 70_000, "\udc80"):
            yield ask(form, ONE, name=name)
        for process_set in (0, None, [0, 1], hvd.ProcessSet([0]), "global"):
            yield ask(form, ONE, process_set=process_set)
    for form in GROUPED:
        yield ask(form, ONE, name=5)
        yield ask(form, ONE, process_set=[0, 1])
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
        for form in (form for form in FORMS if KINDS[form] == "broadcast"):
            yield ask(form, ONE, root_rank=root)
        yield f"broadcast_object root {describe(root)}", partial(hvd.broadcast_object, 1, root)
        yield f"broadcast_parameters root {describe(root)}", partial(hvd.broadcast_parameters, [ONE], root)
        state = partial(hvd.broadcast_optimizer_state, optimizer, root)
        yield f"broadcast_optimizer_state root {describe(root)}", state
    for splits in (5, "ab", [1.0, 1.0], [1], [MANY, 0], [-1, 3], [None, 2], ONE, torch.ones(1, 2).int(), {}):
        yield ask("alltoall", ONE, splits=splits)
        yield ask("alltoall_async", ONE, splits=splits)
    for compression in ("fp16", None, 16, torch.float16, BadCompression):
        for form in ("allreduce", "reducescatter", "grouped_allreduce", "grouped_reducescatter"):
            yield ask(form, ONE, compression=compression)
    for handle in (None, "x", [], 99_999, -1, 1.5):
        yield f"poll {handle}", partial(hvd.poll, handle)
        yield f"synchronize {handle}", partial(hvd.synchronize, handle)


def list_optimizers() -> Iterator[Call]:
    """Arguments of the distributed optimizer and of what prepares it."""
    model = torch.nn.Linear(2, 2)
    foreign = torch.nn.Parameter(ONE.clone())
    weight, bias = model.weight, model.bias

    def wrap(**arguments: object) -> Call:
        title = f"DistributedOptimizer { ({name: describe(value) for name, value in arguments.items()}) }"
        return title, lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), **arguments)  # type: ignore[arg-type]  # nonsense

    pair_twice = [("a", ONE), ("a", ONE)]
    for parameters in (None, 3, "x", {"a": 3}, [("a", ONE, 1)], [(1, ONE)], pair_twice, {1: ONE}, [None]):
        yield f"broadcast_parameters {describe(parameters)}", partial(hvd.broadcast_parameters, parameters, 0)
    for plain in (model, None, 5):
        yield f"broadcast_optimizer_state {plain}", partial(hvd.broadcast_optimizer_state, plain, 0)
        yield f"DistributedOptimizer {plain}", partial(hvd.DistributedOptimizer, plain)
    named: list[object] = [5, [weight, bias], [("a", weight)], [("a", weight), ("a", bias)]]
    named += [[("a", weight), ("b", bias), ("z", weight)], [(1, weight), (2, bias)], [("a", 1), ("b", 2)]]
    arguments: dict[str, tuple[object, ...]] = {
        "backward_passes_per_step": (0, -1, 1.5, "1", None),
        "gradient_predivide_factor": (0, 0.0, None, "a", float("nan"), float("inf"), 1j, ONE, MANY, 1e-320),
        "groups": (-1, "x", 1.5, [5], [weight], [["x"]], [[ONE]], [[foreign]], [[weight], [weight]]),
        "compression": ("fp16", None, 16, torch.float16),
        "process_set": (0, None, [0, 1], hvd.ProcessSet([0])),
        "op": (99, "Sum", object()),
        "named_parameters": (*named, [("a",), ("b",)]),
    }
    for argument, values in arguments.items():
        for value in values:
            yield wrap(**{argument: value})
    yield wrap(gradient_predivide_factor=2.0, op=hvd.Sum)
    yield wrap(op=hvd.Adasum, process_set=hvd.ProcessSet([0]))


def list_calls() -> list[Call]:
    """All of them."""
    lists = (list_reductions, list_tensors, list_places, list_details, list_optimizers)
    return [call for each in lists for call in each()]
