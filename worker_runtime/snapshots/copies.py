"""Copies of tensors on their own devices, and the moment from which a thread may read them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

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


def note_stream(tensors: Sequence[torch.Tensor]) -> Callable[[], AbstractContextManager[object]]:
    """Note what this stream of the GPU has to do; what is returned enters another one, which waits for that."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return nullcontext
    event = torch.cuda.current_stream(device).record_event()

    def begin() -> AbstractContextManager[object]:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch
        stream.wait_event(event)
        return torch.cuda.stream(stream)

    return begin
