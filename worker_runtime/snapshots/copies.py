"""Copies of tensors on their own devices, and the synchronization with the streams that make them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch


def clone(tensors: Sequence[torch.Tensor], clones: list[torch.Tensor]) -> None:
    """Copy tensors into clones; where these are missing or have another form or device, they are made anew."""
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
    """Note the present work of this thread's CUDA streams.

    Returns:
        A context that enters other streams, which wait for this work.
    """
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

    A host may enqueue many steps before its GPU takes them. Then it would overwrite the random states of the newest
    save that is complete on all ranks.
    """

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def keep(self) -> None:
        """Wait until the GPU has reached the last save; without a GPU return at once."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
            return
        if self._event is not None:
            self._event.synchronize()
        self._event = torch.cuda.current_stream().record_event()
