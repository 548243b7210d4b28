"""What is wrong with a call on this rank alone, said before anything is asked."""

import operator
from collections.abc import Sequence

import torch

from worker_runtime.collectives.layout import overlaps_itself
from worker_runtime.errors import WrongArgumentError

_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001 - of torch.Tensor, and what inherits it
# What these modes let operations make has no values.
_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY"))  # noqa: SLF001 - torch's only way to tell


def make_title(name: str) -> str:
    """How messages call the operation that travels as `name`: of "allreduce.loss" it is "allreduce 'loss'"."""
    kind, _, own = name.partition(".")
    return f"{kind} '{own}'" if own else kind


def check_tensors(title: str, tensors: Sequence[torch.Tensor]) -> str:
    """Make sure that tensors can be communicated together, dtypes aside, and return on what they lie.

    Returns:
        "cpu" or "cuda".

    Raises:
        ValueError: there is none, one is no tensor, nested, sparse, without values or on no such device, or they lie
            on several; or tensors only stand for others here.
    """
    if not tensors:
        raise ValueError(f"{title}: there are no tensors; give at least one")
    check_place(title)
    is_on_cpu = True
    for tensor in tensors:
        try:
            if tensor.is_nested:
                raise ValueError(f"{title}: nested tensors are not supported; give its parts, as x.unbind() makes them")
            if tensor.layout is not torch.strided:
                raise ValueError(f"{title}: sparse tensors are not supported; make it dense (x.to_dense())")
            if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
                raise ValueError(
                    f"{title}: a {type(tensor).__name__} stands for other tensors; give those it stands for"
                )
            is_on_cpu &= tensor.is_cpu
        except AttributeError:  # to look beforehand would cost every call
            raise WrongArgumentError(f"{title}: a tensor was expected, not {type(tensor).__name__}") from None
    if is_on_cpu:  # asked like this, since it takes a tenth of the time to look at a device
        return "cpu"
    return _find_device(title, tensors)


def _find_device(title: str, tensors: Sequence[torch.Tensor]) -> str:
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"{title}: Tensors in list must be on same device; got {device} and {tensor.device}")
    if device.type != "cuda":
        raise ValueError(f"{title}: tensors on {device} are not supported; move it to the CPU (x.cpu())")
    return device.type


def check_place(title: str) -> None:
    """Raise ValueError where tensors only stand for others: in a transform of torch.func, or while torch traces."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001 - torch's only way to tell
        raise ValueError(
            f"{title}: collectives cannot run inside vmap, grad, jvp and the like of torch.func; call it outside of "
            "them (loss.backward() is fine)"
        )
    if torch._C._len_torch_dispatch_stack() and any(map(_find_mode, _TRACING)):  # noqa: SLF001 - the same
        raise ValueError(
            f"{title}: collectives cannot run under FakeTensorMode or make_fx, where tensors have no values; call it "
            "outside of them"
        )


def _find_mode(key: object) -> object:
    return torch._C._get_dispatch_mode(key)  # type: ignore[arg-type]  # noqa: SLF001 - a key, which torch does not export


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
