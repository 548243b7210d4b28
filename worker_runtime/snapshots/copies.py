"""Copies of tensors on their own devices, and the moments from which a thread may read them, or a host may go on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch


def clone(tensors: Sequence[torch.Tensor], clones: list[torch.Tensor]) -> None:
    """Copy tensors into clones of their form and device, which are made where they are missing."""
    fits = len(clones) == len(tensors) and all(
        (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        for one, other in zip(clones, tensors, strict=True)
    )
    if not fits:
        clones[:] = [torch.empty_like(tensor) for tensor in tensors]
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(clones, list(tensors))


def note_streams(tensors: Sequence[torch.Tensor]) -> Callable[[], AbstractContextManager[object]]:
    """Note what this thread's streams of the GPUs have to do; what is returned enters others, which wait for that."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    if not devices:
        return nullcontext
    events = [(device, torch.cuda.current_stream(device).record_event()) for device in devices]

    @contextmanager
    def begin() -> Iterator[None]:
        with ExitStack() as stack:
            for device, event in events:
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            yield

    return begin


class Pace:
    """Keeps a rank that copies no state near to its GPU.

    Where a host enqueues many steps before its GPU makes them, it would overwrite the random states of the newest save
    that is complete on all ranks.
    """

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def keep(self) -> None:
        """Wait until the GPU has come to the last save; on a CPU the host has."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
            return
        if self._event is not None:
            self._event.synchronize()
        self._event = torch.cuda.current_stream().record_event()
