"""What all operations on tensors share: on CUDA they run on a stream of their own, on the CPU where they are called.

An operation is started by the thread that hears of its release, at a time when the caller's stream may have gone far
ahead. So on CUDA each has a stream of its own, which waits for exactly what the caller had enqueued when it made the
operation. The stream of the thread that takes the result waits for that one; the host never does.
"""

import operator
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any

import torch

from worker_runtime.collectives.buffers import overlaps_itself
from worker_runtime.collectives.dtypes import name_dtype
from worker_runtime.coordination.operation import Members, Operation, ResultT_co
from worker_runtime.coordination.ordering.questions import Kind, Reduction, Release, Signature, make_title
from worker_runtime.errors import WrongArgumentError
from worker_runtime.groups.torch_groups import TorchGroup, Work

_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001 - of torch.Tensor, and what inherits it
# What these modes let operations make has no values.
_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY"))  # noqa: SLF001 - torch's only way to tell


def make_error(name: str, text: str) -> ValueError:
    """The error of a call that is wrong on this rank alone.

    Args:
        name: of the operation as it travels, or the function's, as in all checks here.
        text: what is wrong, and what to do.
    """
    return ValueError(f"{make_title(name)}: {text}")


def check_tensors(name: str, tensors: Sequence[torch.Tensor]) -> str:
    """Make sure that tensors can be communicated together, dtypes aside, and return on what they lie.

    Returns:
        "cpu" or "cuda".

    Raises:
        ValueError: there is none, one is no tensor, nested, sparse, without values or on no such device, or they lie
            on several; or tensors only stand for others here.
    """
    if not tensors:
        raise make_error(name, "there are no tensors; give at least one")
    check_place(name)
    is_on_cpu = True
    for tensor in tensors:
        try:
            if tensor.is_nested:
                raise make_error(name, "nested tensors are not supported; give its parts, as x.unbind() makes them")
            if tensor.layout is not torch.strided:
                raise make_error(name, "sparse tensors are not supported; make it dense (x.to_dense())")
            if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
                raise make_error(name, f"a {type(tensor).__name__} stands for other tensors; give those it stands for")
            is_on_cpu &= tensor.is_cpu
        except AttributeError:  # to look beforehand would cost every call
            check_tensor(name, tensor)
            raise
    if is_on_cpu:  # asked like this, since it takes a tenth of the time to look at a device
        return "cpu"
    return _find_device(name, tensors)


def check_tensor(name: str, tensor: object) -> None:
    """Raise WrongArgumentError unless it is a tensor."""
    if tensor is None:
        raise WrongArgumentError(
            f"{make_title(name)}: a tensor was expected, not None, which p.grad is until backward() has made a "
            "gradient; call it after that, or give torch.zeros_like(p)"
        ) from None
    if not isinstance(tensor, torch.Tensor):
        raise WrongArgumentError(
            f"{make_title(name)}: a tensor was expected, not {type(tensor).__name__}; use torch.as_tensor(x)"
        ) from None


def _find_device(name: str, tensors: Sequence[torch.Tensor]) -> str:
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise make_error(name, f"Tensors in list must be on same device; got {device} and {tensor.device}")
    if device.type != "cuda":
        raise make_error(name, f"tensors on {device} are not supported; move it to the CPU (x.cpu())")
    return device.type


def check_place(name: str) -> None:
    """Raise ValueError where tensors only stand for others: in a transform of torch.func, or while torch traces."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001 - torch's only way to tell
        raise make_error(
            name,
            "collectives cannot run inside vmap, grad, jvp and the like of torch.func; call it outside of "
            "them (loss.backward() is fine)",
        )
    if torch._C._len_torch_dispatch_stack() and any(map(_find_mode, _TRACING)):  # noqa: SLF001 - the same
        raise make_error(
            name,
            "collectives cannot run under FakeTensorMode or make_fx, where tensors have no values; call it "
            "outside of them",
        )


def _find_mode(key: object) -> object:
    return torch._C._get_dispatch_mode(key)  # type: ignore[arg-type]  # noqa: SLF001 - a key, which torch does not export


def read_root(name: str, root: object, ranks: Sequence[int]) -> int:
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
        raise ValueError(
            f"broadcast received invalid root rank {root} ({make_title(name)}); the set's ranks are {listed}"
        )
    return rank


def check_rows(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError where a tensor has no first dimension."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise make_error(name, "a tensor without dimensions has no rows; give it one (x.reshape(1))")


def check_targets(name: str, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Make sure that the results can be written where they shall go.

    Raises:
        ValueError: there is not one target for each tensor, it differs from it in shape, dtype or device, is sparse,
            or several of its elements are one place in memory.
    """
    if into is not tensors:
        _check_likeness(name, into, tensors)
    for target in into:
        if not target.is_contiguous() and overlaps_itself(target):
            raise make_error(
                name, "elements of the tensor for the result share their memory, as after expand(); clone it"
            )


def _check_likeness(name: str, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    if len(into) != len(tensors):
        raise make_error(name, f"there are {len(tensors)} tensors and {len(into)} for the results; give one for each")
    for target, tensor in zip(into, tensors, strict=True):
        if target is not tensor and (
            (target.dtype, target.shape, target.device, target.layout)
            != (tensor.dtype, tensor.shape, tensor.device, tensor.layout)
        ):
            raise make_error(
                name,
                f"the result is {tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}, and cannot go"
                f" into {target.dtype} of shape {list(target.shape)} on {target.device}",
            )


@lru_cache(maxsize=1024)
def make_signature(
    kind: Kind,
    dtypes: tuple[torch.dtype, ...],
    shapes: tuple[tuple[int, ...], ...],
    device: str,
    reduction: Reduction | None = None,
    **more: Any,  # noqa: ANN401 - as in `Signature`
) -> Signature:
    """The signature of a collective on tensors of these dtypes and shapes.

    Raises:
        ValueError: a dtype is not supported.
    """
    names = tuple(name_dtype(dtype) for dtype in dtypes)
    return Signature(kind, names, tuple(map(tuple, shapes)), reduction, device=device, **more)


class SideStream:
    """A context in which kernels and collectives are enqueued; made in the caller's thread.

    Args:
        device: of the operation's tensors, a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._entered = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        self._entered.__enter__()  # type: ignore[no-untyped-call]  # the same

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, traceback)

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream continue where this one is now.

        Args:
            tensors: what this stream has used: their memory must outlive what the current stream does with it.
        """
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)


class TensorOperation(Operation[ResultT_co]):
    """A collective on tensors that lie on one device."""

    _side_stream: SideStream | None = None  # on CUDA

    def _begin(
        self, name: str, among: Members, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None = None
    ) -> str:
        """For constructors: check the tensors; on CUDA, wait for what the caller has enqueued until now.

        Returns:
            On what they lie: "cpu" or "cuda".
        """
        device = check_tensors(name, tensors)
        if into is not None:
            check_targets(name, into, tensors)
        if device != "cpu":
            self._side_stream = SideStream(tensors[0].device)
        self.among = among
        return device

    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Begin to communicate; see `Operation`."""
        if self._side_stream is None:
            return self._communicate(group, terms)
        with self._side_stream:
            return self._communicate(group, terms)

    def finish(self, terms: Release, payload: memoryview) -> ResultT_co:
        """Make the result; see `Operation`."""
        if self._side_stream is not None:
            self._side_stream.hand_over(self._list_used())
        return self._conclude(terms, payload)

    @abstractmethod
    def _communicate(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """As `start`."""

    @abstractmethod
    def _conclude(self, terms: Release, payload: memoryview) -> ResultT_co:
        """As `finish`; `_communicate` was not called in a set of one, or where the data have travelled as payload."""

    @abstractmethod
    def _list_used(self) -> Iterable[torch.Tensor]:
        """The tensors that `_communicate` has read or made."""
