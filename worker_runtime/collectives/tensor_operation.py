"""The common part of all operations on tensors: their checks, and on CUDA their side streams.

The thread that receives a release starts the operation, when the caller's stream may be far ahead. So on CUDA the
operations of a device are started on a side stream, which waits for the work that the caller had enqueued when it
created the operation. The stream of the thread that takes the result waits for what the operation has enqueued there;
the host never waits. There is one side stream for each device: torch's allocator keeps the memory of each stream apart,
so with several streams repeated operations would hold several times their memory.
"""

import operator
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from types import TracebackType
from typing import Any

import torch
from torch.autograd import forward_ad

from worker_runtime.collectives.buffers import overlaps_itself
from worker_runtime.collectives.dtypes import name_dtype
from worker_runtime.coordination.operation import Members, Operation, ResultT_co
from worker_runtime.coordination.ordering.requests import Kind, Reduction, Release, Signature, make_title
from worker_runtime.errors import WrongArgumentError
from worker_runtime.groups.torch_groups import TorchGroup, Work

_PLAIN_DISPATCH = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001 - of torch.Tensor and plain subclasses
# The dispatch modes in which tensors have no values.
_TRACING = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY"))  # noqa: SLF001 - torch has no public way

_TRANSFORMED = (
    "collectives cannot run inside vmap, grad, jvp and the like of torch.func; call it outside of them "
    "(loss.backward() is fine)"
)


def make_error(name: str, text: str) -> ValueError:
    """The error of a call with wrong arguments.

    Args:
        name: the full name of the operation, or that of the function; the same in all checks of this module.
        text: what is wrong, and what to do.
    """
    return ValueError(f"{make_title(name)}: {text}")


def check_tensors(name: str, tensors: Sequence[torch.Tensor]) -> str:
    """Check that tensors can be communicated together, except for their dtypes.

    Returns:
        The type of their device: "cpu" or "cuda".

    Raises:
        ValueError: there is no tensor; one is not a tensor, is nested, sparse, without values or on an unsupported
            device; they are on several devices; or torch traces or transforms the call.
    """
    if not tensors:
        raise make_error(name, "there are no tensors; give at least one")
    check_untransformed(name)
    if forward_ad._current_level >= 0:  # noqa: SLF001 - torch has no public way
        _refuse_tangents(name, tensors)

    is_on_cpu = True
    for tensor in tensors:
        try:
            if tensor.is_nested:
                raise make_error(name, "nested tensors are not supported; give its parts, as x.unbind() makes them")
            if tensor.layout is not torch.strided:
                raise make_error(name, "sparse tensors are not supported; make it dense (x.to_dense())")
            if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
                raise make_error(name, f"a {type(tensor).__name__} wraps other tensors; give the wrapped tensors")
            is_on_cpu &= tensor.is_cpu
        except AttributeError:  # a check beforehand would slow down every call
            check_tensor(name, tensor)
            raise

    # Reading is_cpu takes a tenth of the time of .device.
    if is_on_cpu:
        return "cpu"
    return _find_device(name, tensors)


def check_tensor(name: str, tensor: object) -> None:
    """Raise WrongArgumentError unless the argument is a tensor."""
    if tensor is None:
        raise WrongArgumentError(
            f"{make_title(name)}: a tensor was expected, not None, which p.grad is before backward(); call it "
            "afterwards, or give torch.zeros_like(p)"
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
        remedy = "move it to the CPU (x.cpu())"
        if device.type == "meta":
            remedy = "it has no data: make it on the CPU (torch.zeros_like(x, device='cpu'))"
        raise make_error(name, f"tensors on {device} are not supported; {remedy}")
    check_capture(name)
    return device.type


def check_capture(name: str) -> None:
    """Raise ValueError while a CUDA graph is captured: the ranks agree on each operation, which no graph repeats."""
    if torch.cuda.is_current_stream_capturing():
        raise make_error(name, "collectives cannot be captured in a CUDA graph; call it outside of the capture")


def check_untransformed(name: str) -> None:
    """Raise ValueError inside a transform of torch.func, or while torch traces: tensors have no values there."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001 - torch has no public way
        raise make_error(name, _TRANSFORMED)
    if torch._C._len_torch_dispatch_stack() and any(map(_find_mode, _TRACING)):  # noqa: SLF001 - torch has no public way
        raise make_error(
            name,
            "collectives cannot run under FakeTensorMode or make_fx, where tensors have no values; call it "
            "outside of them",
        )


def _refuse_tangents(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for a dual tensor of `torch.autograd.forward_ad`: the result would lack its tangent."""
    unpack: Any = forward_ad.unpack_dual  # torch leaves it untyped
    if any(isinstance(tensor, torch.Tensor) and unpack(tensor).tangent is not None for tensor in tensors):
        raise make_error(name, _TRANSFORMED)


def _find_mode(key: object) -> object:
    return torch._C._get_dispatch_mode(key)  # type: ignore[arg-type]  # noqa: SLF001 - a key, which torch does not export


def read_root(name: str, root: object, ranks: Sequence[int]) -> int:
    """The argument `root_rank` as an int: an integer, also NumPy's.

    Raises:
        ValueError: it is something else, or not a rank of the set.
    """
    try:
        rank = operator.index(root)  # type: ignore[arg-type]  # a wrong type raises the TypeError
    except (TypeError, RuntimeError):
        rank = -1
    if rank not in ranks:
        listed = ", ".join(map(str, ranks))
        raise ValueError(
            f"broadcast received invalid root rank {root!r} ({make_title(name)}); the set's ranks are {listed}"
        )
    return rank


def check_rows(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError if a tensor has no dimensions."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise make_error(name, "a tensor without dimensions has no rows; give it one (x.reshape(1))")


def check_targets(name: str, into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Check that the results can be written to `into`.

    Raises:
        ValueError: there is not one target for each tensor; a target differs from it in shape, dtype or device, or is
            sparse; or several of its elements share memory.
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
    **more: Any,
) -> Signature:
    """The signature of a collective on tensors of these dtypes and shapes.

    Raises:
        ValueError: a dtype is not supported.
    """
    names = tuple(name_dtype(dtype) for dtype in dtypes)
    return Signature(kind, names, tuple(map(tuple, shapes)), reduction, device=device, **more)


@cache
def find_side_stream(device: torch.device) -> torch.cuda.Stream:
    """The side stream of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class SideStream:
    """A context in which an operation's kernels and collectives use the side stream; created in the caller's thread.

    Args:
        device: the CUDA device of the operation's tensors, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reached = torch.cuda.current_stream(device).record_event()  # at first by the caller
        self._entered: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        stream = find_side_stream(self._device)
        self._entered = torch.cuda.stream(stream)
        self._entered.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        stream.wait_event(self._reached)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reached = find_side_stream(self._device).record_event()
        if self._entered is not None:
            self._entered.__exit__(kind, error, traceback)

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make the current stream wait for what the operation has enqueued.

        Args:
            tensors: the tensors that the side stream has used; their memory must not be freed too early.
        """
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._reached)
        for tensor in tensors:
            tensor.record_stream(current)


class TensorOperation(Operation[ResultT_co]):
    """A collective on tensors of one device."""

    _side_stream: SideStream | None = None  # on CUDA

    def _begin(
        self, name: str, among: Members, tensors: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None = None
    ) -> str:
        """Check the tensors, and on CUDA create the side stream; for constructors.

        Returns:
            The type of the device: "cpu" or "cuda".
        """
        device = check_tensors(name, tensors)
        if into is not None:
            check_targets(name, into, tensors)
        if device != "cpu":
            self._side_stream = SideStream(tensors[0].device)
        self.among = among
        return device

    def follow_caller(self) -> AbstractContextManager[object]:
        """The side stream, which waits for the caller's; see `Operation`."""
        return self._side_stream or nullcontext()

    def start(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """Start to communicate; see `Operation`."""
        with self.follow_caller():
            return self._communicate(group, release)

    def finish(self, release: Release, payload: memoryview) -> ResultT_co:
        """Compute the result; see `Operation`."""
        if self._side_stream is not None:
            self._side_stream.hand_over(self._list_used())
        return self._conclude(release, payload)

    @abstractmethod
    def _communicate(self, group: TorchGroup, release: Release) -> Sequence[Work]:
        """See `start`."""

    @abstractmethod
    def _conclude(self, release: Release, payload: memoryview) -> ResultT_co:
        """See `finish`; `_communicate` was not called in a set of one, or where the data are a payload."""

    @abstractmethod
    def _list_used(self) -> Iterable[torch.Tensor]:
        """The tensors that `_communicate` has read or created."""
