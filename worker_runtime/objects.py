"""Python objects between workers: cloudpickle makes the bytes, the collectives carry them.

Only workers of one job, which the rendezvous has admitted, share a group; nothing is unpickled from anybody else.
"""

from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types
import torch

from worker_runtime.collectives import Allgather, broadcast_async, check_root
from worker_runtime.executor import Executor


def broadcast_object(executor: Executor, value: Any, root: int, name: str | None = None) -> Any:  # noqa: ANN401 - any object
    """The root's object on every rank: itself on the root, a copy elsewhere.

    Raises:
        ValueError: there is no such root.
    """
    name = name or type(value).__name__
    check_root(f"broadcast_object '{name}'", root, executor.size)
    is_root = executor.rank == root
    data = _pickle(value) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()], dtype=torch.int64)
    broadcast_async(executor, length, root, f"{name}.size").wait()
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_async(executor, data, root, f"{name}.bytes").wait()
    return value if is_root else _unpickle(data)


def allgather_object(executor: Executor, value: Any, name: str | None = None) -> list[Any]:  # noqa: ANN401 - any object
    """The objects of all ranks, in rank order; also this rank's own is a copy."""
    parts = executor.submit(Allgather(_pickle(value), name or type(value).__name__)).wait()
    return [_unpickle(part) for part in parts]


def _pickle(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(value)), dtype=torch.uint8)


def _unpickle(data: torch.Tensor) -> Any:  # noqa: ANN401 - any object
    return cloudpickle.loads(data.numpy().tobytes())
