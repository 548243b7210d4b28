"""Objects that the ranks exchange for their states."""

from typing import Any

from worker_runtime.engine import objects
from worker_runtime.membership.runtime import RUNTIME


def gather_objects(value: Any, name: str) -> list[Any]:
    """The objects of all ranks, by an operation of this name; before `init()` this process's object alone."""
    if RUNTIME.is_initialized:
        return objects.allgather_object(RUNTIME.engine, value, name)
    return [value]


def broadcast_object(value: Any, name: str) -> Any:
    """The object of rank 0 on all ranks, by an operation of this name."""
    return objects.broadcast_object(RUNTIME.engine, value, 0, name)


def count_ranks() -> int:
    """The present size of the job; 1 before `init()`."""
    if RUNTIME.is_initialized:
        return RUNTIME.engine.size
    return 1
