"""What becomes of an error in a task that nobody awaits."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def supervise(task: asyncio.Task[T], fail: Callable[[BaseException], None]) -> asyncio.Task[T]:
    """Have `fail` take the error that ends this task, if one does; the task itself."""

    def look(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(error)

    task.add_done_callback(look)
    return task
