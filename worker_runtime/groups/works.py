"""Pieces of communication under way, as torch hands them out: waiting for them, ending waits, what failures mean."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from worker_runtime.groups.torch_groups import Work

# Waiting in slices lets Python run signal handlers; measured, it costs nothing.
_SLICE = timedelta(milliseconds=20)
_PAUSE_SECONDS = 0.001


class FailedWork:
    """What could not even be begun: it has ended, and to wait for it raises why."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, timeout: timedelta = _SLICE) -> bool:
        """Raise the error."""
        del timeout
        raise self._error

    def is_completed(self) -> bool:
        """It never ran."""
        return True


def await_works(works: Sequence[Work], listen: Callable[[], None] = lambda: None) -> RuntimeError | None:
    """Wait for all of them; the first one's failure, without its traceback.

    `listen` is called now and then meanwhile: nobody but the sequencer may know that a rank is lost.

    The frames of a traceback would hold a work, and that its group's device, for as long as anybody keeps the error:
    its destructor then joins a thread, which in a forked child does not exist (torch crashes there).
    """
    try:
        for work in works:
            await_work(work, listen)
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def await_work(work: Work, listen: Callable[[], None] = lambda: None) -> None:
    """Wait for a piece of communication to its own time limit, open to signals; `listen` is called now and then.

    Raises:
        RuntimeError: it failed.
    """
    while True:
        try:
            work.wait(_SLICE)
        except RuntimeError:
            if not work.is_completed():
                listen()
                continue  # the slice is over, not the operation
        else:
            return
        work.wait()  # raises the true failure; or nothing, if it completed just after the slice
        return


def end_before(works: Sequence[Work], deadline_seconds: float) -> bool:
    """Whether all of them have ended by then (`time.monotonic()`), well or not."""
    for work in works:
        while not work.is_completed():
            if time.monotonic() > deadline_seconds:
                return False
            with contextlib.suppress(RuntimeError):  # failed or not yet: is_completed() tells
                work.wait(_SLICE)  # never less: gloo counts milliseconds, and takes 0 for no limit at all
                time.sleep(_PAUSE_SECONDS)  # for works that let a stream wait, and not this thread
    return True


def describe_cause(error: RuntimeError) -> str:
    """The message of gloo without its source position and its general advice."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", str(error))
    text = text.partition(" This is typically caused")[0].strip().rstrip(".!")
    return text or type(error).__name__


class Cancellation:
    """Of one undertaking; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cover(self, end: Callable[[], None]) -> None:
        """From now on `cancel` calls this too, and at once where it was called before; it may be called repeatedly."""
        with self._lock:
            self._ends.append(end)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            end()

    def cancel(self) -> None:
        """Whoever waits shall fail soon."""
        with self._lock:
            self._is_cancelled = True
            ends = list(self._ends)
        for end in ends:
            end()
