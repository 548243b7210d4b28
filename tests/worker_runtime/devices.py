"""The devices on which tests of tensors run: the CPU in `make test`, a GPU in `make gpu`.

A test with the marker `devices` runs twice: on ranks whose tensors lie on the CPU and, with the marker `gpu`, on ranks
whose tensors lie on a GPU, all ranks on one if there is no more. Its functions name no device.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

import worker_runtime.torch as hvd

CPU, CUDA = DEVICES = ("cpu", "cuda")
_IN_PLACE = frozenset(
    getattr(torch.Tensor, name)
    for name in ("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_")
)
_INIT = "torch.nn.init"
_FACTORIES = frozenset(_device_constructors())
_RANDOM = frozenset({torch.normal, torch.rand, torch.randint, torch.randn, torch.randperm})


class OnDevice(TorchFunctionMode):
    """Tensors are created on a device if their function names none. Random numbers are those of the CPU everywhere.

    Args:
        device: its type.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        del types
        given = dict(kwargs or {})
        if func in _IN_PLACE:
            return self._fill(func, args, given)
        if getattr(func, "__module__", "") == _INIT and (args or "tensor" in given):
            return self._fill(func, args or (given.pop("tensor"),), given)
        if func not in _FACTORIES or given.get("device") is not None:
            return func(*args, **given)
        if func not in _RANDOM:
            return func(*args, **{**given, "device": self._device})
        needs_gradient = given.pop("requires_grad", False)
        made = func(*args, **{**given, "device": CPU}).to(self._device)
        return made.requires_grad_(needs_gradient)

    def _fill(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
        """Fill a tensor with random numbers."""
        tensor, *rest = args
        with torch.no_grad():
            filled = torch.empty(tensor.shape, dtype=tensor.dtype, device=CPU).copy_(tensor)
            func(filled, *rest, **given)
            tensor.copy_(filled)
        return tensor  # type: ignore[no-any-return]  # torch leaves it untyped


class Place:
    """Where this thread creates its tensors; another thread can `take` it, since torch keeps both for each thread."""

    def __init__(self) -> None:
        self._modes = _get_current_function_mode_stack()
        self._index = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def take(self) -> None:
        """Create the tensors of the calling thread there, until the thread ends."""
        if self._index is not None:
            torch.cuda.set_device(self._index)
        for mode in self._modes:
            mode.__enter__()


def describe_rank(device: str, rank: int, count: int, cards: int | None = None) -> dict[str, str]:
    """The variables of a rank's process.

    NCCL refuses two ranks of one GPU only if they are on the same host. `NCCL_HOSTID` says that they are not: then it
    connects them by sockets, and nothing but the speed differs.

    Args:
        device: where its tensors may lie.
        rank: its number.
        count: how many ranks there are.
        cards: how many GPUs; None counts them.
    """
    if device == CPU or count <= (torch.cuda.device_count() if cards is None else cards):
        return {}
    return {"NCCL_HOSTID": f"slot-{rank}", "NCCL_SOCKET_IFNAME": "lo"}


def call(device: str, compiles: bool, function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function as a rank, whose tensors lie on a device; those of its result are brought to the CPU.

    Args:
        device: its type.
        compiles: the function uses torch.compile, which knows no mode but torch's own.
        function: what to call.
        *arguments: of it.
    """
    if device == CUDA:
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    with torch.device(device) if compiles else OnDevice(device):
        result = function(*arguments)
    return tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, result)
