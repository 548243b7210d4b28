"""What is wrong with a call on this rank alone, said before anything is asked."""

import operator
from collections.abc import Sequence

import torch

from worker_runtime.collectives.layout import overlaps_itself
from worker_runtime.errors import WrongArgumentError


def make_title(name: str) -> str:
    """How messages call the operation that travels as `name`: of "allreduce.loss" it is "allreduce 'loss'"."""
    kind, _, own = name.partition(".")
    return f"{kind} '{own}'" if own else kind


def check_tensors(title: str, tensors: Sequence[torch.Tensor]) -> str:
    """Make sure that tensors can be communicated together, dtypes aside, and return on what they lie.

    Returns:
        "cpu" or "cuda".

    Raises:
        ValueError: there is none, one is no tensor, nested, sparse or on no such device, or they lie on several.
    """
    if not tensors:
        raise ValueError(f"{title}: there are no tensors; give at least one")
    is_on_cpu = True
    for tensor in tensors:
        try:
            if tensor.is_nested:
                raise ValueError(f"{title}: nested tensors are not supported; give its parts, as x.unbind() makes them")
            if tensor.layout is not torch.strided:
                raise ValueError(f"{title}: sparse tensors are not supported; make it dense (x.to_dense())")
            is_on_cpu &= tensor.is_cpu
        except AttributeError:  # to look beforehand would cost every call
            raise WrongArgumentError(f"{title}: a tensor was expected, not {type(tensor).__name__}") from None
    if is_on_cpu:  # asked like this, since it takes a tenth of the time to look at a device
        return "cpu"
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"{title}: Tensors in list must be on same device; got {device} and {tensor.device}")
    if device.type != "cuda":
        raise ValueError(f"{title}: tensors on {device} are not supported; move it to the CPU (x.cpu())")
    return device.type


def read_root(title: str, root: object, ranks: Sequence[int]) -> int:
    """The root's rank in the job, as a program has given it: an integer, also one of NumPy's.

    Raises:
        ValueError: it is something else, or none of the set's ranks.
    """
    try:
        rank = operator.index(root)  # type: ignore[arg-type]  # that it may be none is what is looked for
    except (TypeError, RuntimeError):
        rank = -1
    if rank not in ranks:
        listed = ", ".join(map(str, ranks))
        raise ValueError(f"broadcast received invalid root rank {root} ({title}); the set's ranks are {listed}")
    return rank


def check_rows(title: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError where a tensor has no first dimension."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"{title}: a tensor without dimensions has no rows; give it one (x.reshape(1))")


def check_targets(title: str, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Make sure that the results can be written where they shall go.

    Raises:
        ValueError: there is not one target for each tensor, it differs from it in shape, dtype or device, is sparse,
            or several of its elements are one place in memory.
    """
    if into is not tensors:
        _check_likeness(title, into, tensors)
    for target in into:
        if not target.is_contiguous() and overlaps_itself(target):
            raise ValueError(
                f"{title}: elements of the tensor for the result share their memory, as after expand(); clone it"
            )


def _check_likeness(title: str, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    if len(into) != len(tensors):
        raise ValueError(
            f"{title}: there are {len(tensors)} tensors and {len(into)} for the results; give one for each"
        )
    for target, tensor in zip(into, tensors, strict=True):
        if target is not tensor and (
            (target.dtype, target.shape, target.device, target.layout)
            != (tensor.dtype, tensor.shape, tensor.device, tensor.layout)
        ):
            raise ValueError(
                f"{title}: the result is {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}, and cannot go"
                f" into {target.dtype} of shape {list(target.shape)} on {target.device}"
            )
