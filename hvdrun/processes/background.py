"""Tasks, and calls in threads, that run in the background: their owner gets their errors."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextvars import Context
from types import TracebackType
from typing import Any, TypeVar

from hvdrun.errors import HvdrunError

T = TypeVar("T")


class BackgroundTasks(asyncio.TaskGroup):
    """A task group that cancels its tasks when its block ends, and raises the error of a task without a group.

    `asyncio.TaskGroup` waits for its tasks, some of which never end, and raises exception groups. It also refuses new
    tasks as soon as one has failed, with a RuntimeError that would stand beside the cause.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()
        self._errors_in_order: list[BaseException] = []
        self._is_ending = False

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """See `asyncio.TaskGroup`. While the group ends the task is cancelled before it begins."""
        if self._is_ending:
            task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
            task.cancel()
            return task
        task = super().create_task(coro, name=name, context=context)
        self._running.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_error(error)

    def _note_error(self, error: BaseException) -> None:
        self._is_ending = True
        self._errors_in_order.append(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending = True
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._note_error(error)
        for task in tuple(self._running):
            task.cancel()
        try:
            await super().__aexit__(kind, error, trace)
        except BaseExceptionGroup:
            first = merge_errors(self._errors_in_order)
        else:
            return
        if first is not error:
            raise first


def merge_errors(errors: Sequence[BaseException]) -> BaseException:
    """The first unexpected error, or else the first one, with notes about the others."""
    unexpected = [each for each in errors if not isinstance(each, HvdrunError)]
    first = (unexpected or errors)[0]
    for other in errors:
        if other is not first:
            first.add_note("".join(traceback.format_exception(other)))
    return first


def retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that nobody may await, so that asyncio does not log it; a done callback."""
    if not task.cancelled():
        task.exception()


def supervise(task: asyncio.Task[T], fail: Callable[[BaseException], None]) -> asyncio.Task[T]:
    """Call `fail` with the error that ends this task, if one does; returns the task."""

    def look(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(error)

    task.add_done_callback(look)
    return task


def raise_error(task: asyncio.Task[Any]) -> None:
    """Raise the error of a task in a callback of the loop, see `report_callback_errors`; a done callback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def start_task(work: Coroutine[Any, Any, T], name: str, among: set[asyncio.Task[T]] | None = None) -> asyncio.Task[T]:
    """Start a task whose error `report_callback_errors` reports; until its end it is `among` the caller's."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(raise_error)
    if among is not None:
        among.add(task)
        task.add_done_callback(among.discard)
    return task


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these tasks, and return when all have stopped.

    An error of a task that is being cancelled goes to `report_callback_errors`. Raised here, it would skip the rest of
    the caller's cleanup, and replace the error that the caller may be raising. The error of a task that failed before
    is left to the caller.
    """
    running = []
    for task in tasks:
        if task.done():
            retrieve(task)
            continue
        task.remove_done_callback(raise_error)  # of `start_task`
        task.add_done_callback(raise_error)
        task.cancel()
        running.append(task)
    if running:
        await asyncio.wait(running)


def report_callback_errors(fail: Callable[[BaseException], None]) -> None:
    """Call `fail` with the error of each callback of the running loop, such as a signal's; asyncio only logs it."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" not in context or error is None or isinstance(error, BlockingIOError):
            loop.default_exception_handler(context)  # of no callback, or gRPC's poller, which then polls again
        else:
            fail(error)

    asyncio.get_running_loop().set_exception_handler(handle)


async def in_thread(work: Callable[[], T], *, abort: Callable[[], object] | None = None) -> T:
    """The result of a blocking call in a new daemon thread, which cannot delay the end of hvdrun.

    asyncio joins the threads of its executor when the loop closes, however long a name server is silent.

    abort: ends the call soon; called when this coroutine is cancelled.
    """
    finished: Future[T] = Future()
    finished.set_running_or_notify_cancel()  # so that a cancellation here leaves it alone

    def run() -> None:
        try:
            finished.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            finished.set_exception(error)

    threading.Thread(target=run, name="hvdrun-call", daemon=True).start()
    try:
        return await asyncio.wrap_future(finished)
    except asyncio.CancelledError:
        if abort is not None:
            abort()
        raise
