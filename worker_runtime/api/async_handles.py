"""What becomes of an operation that was begun asynchronously."""

from collections.abc import Iterator
from typing import Any

from worker_runtime.collectives.untraced import untraced
from worker_runtime.membership.runtime import RUNTIME


@untraced
def poll(handle: int) -> bool:
    """Whether `synchronize` would return, or raise, at once.

    Args:
        handle: what a function that ends in `_async` or `_async_` has returned.

    Raises:
        ValueError: there is no such handle, it was synchronised before, or `shutdown()` came between.
    """
    return RUNTIME.executor.handle_table.poll(handle)


@untraced
def synchronize(handle: int) -> Any:  # noqa: ANN401 - what the operation gives
    """Wait for an operation and return its result; the handle is gone afterwards, however it ends.

    On CUDA it does not wait for the device: the current stream does.

    Args:
        handle: what a function that ends in `_async` or `_async_` has returned.

    Returns:
        What the function's description says: a tensor, or a tuple of some.

    Raises:
        ValueError: there is no such handle, it was synchronised before (where Horovod returns None), or `shutdown()`
            came between.
        HorovodInternalError: the ranks did not agree on the operation, it failed, or `shutdown()` came first.
    """
    return RUNTIME.executor.handle_table.synchronize(handle)


class HandleMap:
    """Horovod's table of the handles that were not synchronised yet, to look into: `handle in ...`, `len(...)`."""

    def __contains__(self, handle: object) -> bool:
        return RUNTIME.is_initialized and handle in tuple(RUNTIME.executor.handle_table)

    def __len__(self) -> int:
        return len(RUNTIME.executor.handle_table) if RUNTIME.is_initialized else 0

    def __iter__(self) -> Iterator[int]:
        return iter(RUNTIME.executor.handle_table) if RUNTIME.is_initialized else iter(())
