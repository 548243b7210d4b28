"""What a program has passed to a collective, looked at before anything else is done with it."""

from collections.abc import Iterable

import torch

from worker_runtime.collectives.tensor_operation import check_place
from worker_runtime.errors import WrongArgumentError


def check_tensor(title: str, tensor: object) -> None:
    """Make sure that it is a tensor, and that something can be done with it here.

    Raises:
        WrongArgumentError: it is no tensor.
        ValueError: tensors only stand for others here; before autograd is used, which says it in its own way.
    """
    if tensor is None:
        raise WrongArgumentError(
            f"{title}: a tensor was expected, not None, which p.grad is until backward() has made a gradient; call it "
            "after that, or give torch.zeros_like(p)"
        )
    if not isinstance(tensor, torch.Tensor):
        raise WrongArgumentError(f"{title}: a tensor was expected, not {type(tensor).__name__}; use torch.as_tensor(x)")
    if tensor.requires_grad and not torch.compiler.is_compiling():
        check_place(title)


def read_tensors(title: str, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group.

    Raises:
        WrongArgumentError: it is no list of tensors.
    """
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise WrongArgumentError(f"{title}: a list of tensors was expected, not {type(tensors).__name__}")
    read = list(tensors)
    for tensor in read:
        check_tensor(title, tensor)
    return read
