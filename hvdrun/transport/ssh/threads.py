"""Blocking calls beside the event loop, each in a daemon thread of its own: none of them can hold up hvdrun's end.

asyncio's own pool is joined when the loop closes, however long a name server takes to say nothing.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, abort: Callable[[], object] | None = None) -> T:
    """The result of a blocking call.

    abort: makes the call end soon; called when nobody waits for the result any more.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if finished.done():
            return
        if error is not None:
            finished.set_exception(error)
        else:
            finished.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop has closed: nobody waits
            return

    threading.Thread(target=run, name="hvdrun-ssh-call", daemon=True).start()
    try:
        return await finished
    except asyncio.CancelledError:
        if abort is not None:
            abort()
        raise
