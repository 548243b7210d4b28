"""Writes bytes to file descriptors in a thread, so that a reader that pauses never blocks the event loop.

A terminal or a pipe may block without a limit. The event loop queues bytes without waiting, and awaits `drain` for back
pressure. The thread waits in `poll`, where `end` can wake it.
"""

import asyncio
import errno
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import zip_longest

CAPACITY_BYTES = 1024 * 1024
_BLOCK_BYTES = select.PIPE_BUF  # a pipe that polls as writable takes as much without blocking
_JOIN_SECONDS = 1.0
FULL_SECONDS = 5.0  # to wait for a full disk
_RETRY_SECONDS = 0.2
_LINE_FEED = 0x0A


def is_passing(error: OSError) -> bool:
    """The error may pass while the job runs: the disk is full."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


class Writer:
    """A queue of bytes and the thread that empties it.

    What a full disk does not take is tried again. After FULL_SECONDS it is dropped, and what follows is tried once. It
    begins with a new line, where only a part of a line was taken. An end with a limit drops it at once, and all that is
    for a reader that pauses, and writes what follows as far as it need not wait.

    Args:
        capacity_bytes: `drain` waits while more than this is queued.
        full_seconds: for how long a full disk is waited for.
    """

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES, full_seconds: float = FULL_SECONDS) -> None:
        self._capacity_bytes = capacity_bytes
        self._full_seconds = full_seconds

        self._changed = threading.Condition()  # guards all that follows
        self._queue: list[tuple[int, bytes] | Callable[[], None]] = []  # to be written, or to be called at its turn
        self._queued_bytes = 0
        self._failures: dict[int, OSError] = {}
        self._full: dict[int, tuple[float, OSError]] = {}  # since when the disk of a descriptor is
        self._lost: dict[int, OSError] = {}  # why something could not be written there
        self._has_dropped = False
        self._is_ending = False

        self._torn: set[int] = set()  # the files that end with a part of a line; the thread's alone
        self._paused: set[int] = set()  # the descriptors for whose readers the end has not waited; the thread's alone
        self._thread: threading.Thread | None = None
        self._wake: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self._on_failure: Callable[[int, OSError], None] | None = None
        self._fault: BaseException | None = None  # the error that has ended the thread
        self._fail: Callable[[BaseException], None] | None = None

    def call_when_failing(
        self, callback: Callable[[int, OSError], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Call back, in the running event loop, for each descriptor that cannot be written.

        The error says why; BrokenPipeError: the reader has gone, as with `| head`. A full disk is reported again after
        it has taken something. `fail` takes an unexpected error, which ends all writing.
        """
        with self._changed:
            self._loop = asyncio.get_running_loop()
            self._on_failure = callback
            self._fail = fail
            if self._fault is not None:
                fail(self._fault)
            full = {descriptor: error for descriptor, (_, error) in self._full.items()}
            for descriptor, error in (self._lost | full).items():
                self._call_in_loop(callback, descriptor, error)

    def find_failure(self, descriptor: int) -> OSError | None:
        """Why a descriptor can no longer be written; None if it can."""
        with self._changed:
            return self._failures.get(descriptor)

    def find_loss(self, descriptor: int) -> OSError | None:
        """Why bytes for this descriptor are lost; None if none are."""
        with self._changed:
            return self._lost.get(descriptor)

    @property
    def is_behind(self) -> bool:
        """Something is queued that has not been written."""
        with self._changed:
            return self._queued_bytes > 0

    @property
    def is_full(self) -> bool:
        """More is queued than `drain` allows."""
        with self._changed:
            return self._queued_bytes > self._capacity_bytes

    def put(self, descriptor: int, data: bytes) -> bool:
        """Queue bytes, without waiting; False if the writer has ended.

        Bytes for a descriptor that can no longer be written are dropped.
        """
        with self._changed:
            if self._is_ending:
                return False
            if not data or descriptor in self._failures:
                self._has_dropped |= bool(data)
                return True
            self._queue.append((descriptor, data))
            self._queued_bytes += len(data)
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                # A daemon, because a write may block though poll has promised otherwise, and the process must end.
                self._thread = threading.Thread(target=self._run, args=(self._wake,), name="output", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def release(self, descriptor: int, done: Callable[[OSError | None], None]) -> None:
        """Close a descriptor when all that is queued for it is written; nothing more may be put for it.

        done: is called then, in the thread, with the error by which bytes were lost.
        """
        self.call_when_written(partial(self._close, descriptor, done))

    def call_when_written(self, done: Callable[[], None]) -> None:
        """Call `done`, in the thread, when all that is queued now is written or lost."""
        with self._changed:
            if self._thread is not None and not self._is_ending:
                self._queue.append(done)
                self._changed.notify_all()
                return
        done()

    def _close(self, descriptor: int, done: Callable[[OSError | None], None]) -> None:
        """Close a descriptor, and forget its errors: the next file may have its number."""
        with self._changed:
            self._full.pop(descriptor, None)
            self._failures.pop(descriptor, None)
            error = self._lost.pop(descriptor, None)
        self._torn.discard(descriptor)
        os.close(descriptor)
        done(error)

    async def drain(self) -> None:
        """Wait while the queue is full; without limit, as a reader may pause, until the caller is cancelled."""
        event = asyncio.Event()
        with self._changed:
            self._loop = asyncio.get_running_loop()
            if self._queued_bytes <= self._capacity_bytes:
                return
            self._waiting.add(event)
        try:
            await event.wait()
        finally:
            with self._changed:
                self._waiting.discard(event)

    async def close(self, limit_seconds: float | None) -> bool:
        """As `end`, without stopping the event loop; raises the unexpected error that has ended the thread."""
        is_complete = await asyncio.to_thread(self.end, limit_seconds)
        if self._fault is not None:
            raise self._fault
        return is_complete

    def end(self, limit_seconds: float | None) -> bool:
        """Write what is queued, and end the thread; return whether nothing was ever dropped.

        Takes at most `limit_seconds`; with None as long as there is a reader, or until another call sets a limit.
        """
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(limit_seconds)
            with self._changed:
                if self._wake is not None:
                    os.eventfd_write(self._wake, 1)
            thread.join(_JOIN_SECONDS)
        with self._changed:
            return not (self._has_dropped or self._queued_bytes)

    def _run(self, wake: int) -> None:
        """Write until there is nothing left and nothing more to come; when woken without waiting."""
        try:
            while batch := self._take():
                for each in batch:
                    if not isinstance(each, tuple):
                        each()
                    else:
                        self._write(*each, wake)
        except BaseException as error:  # noqa: BLE001 - it is raised where the job waits
            with self._changed:
                self._fault = error
                self._has_dropped = self._is_ending = True
                if self._fail is not None:
                    self._call_in_loop(self._fail, error)
        finally:
            with self._changed:
                self._wake = None
                os.close(wake)
                self._release_waiting()

    def _take(self) -> list[tuple[int, bytes] | Callable[[], None]]:
        """Wait for bytes, and take all that are queued; consecutive ones for one descriptor are joined."""
        with self._changed:
            while not self._queue and not self._is_ending:
                self._changed.wait()
            queue, self._queue = self._queue, []
        batch: list[tuple[int, bytes] | Callable[[], None]] = []
        parts: list[bytes] = []
        for each, following in zip_longest(queue, queue[1:]):
            if not isinstance(each, tuple):
                batch.append(each)
                continue
            parts.append(each[1])
            if not isinstance(following, tuple) or following[0] != each[0]:
                batch.append((each[0], b"".join(parts)))
                parts.clear()
        return batch

    def _write(self, descriptor: int, data: bytes, wake: int) -> None:
        """Write all of `data`, or drop it when that is impossible, or needs a wait when woken."""
        woken, poller = select.poll(), select.poll()
        woken.register(wake, select.POLLIN)
        poller.register(wake, select.POLLIN)
        poller.register(descriptor, select.POLLOUT)
        file = self._find_file(descriptor)
        if file in self._torn:
            data = b"\n" + data
            self._count_out(-1)
        rest = memoryview(data)

        while rest and self.find_failure(descriptor) is None and descriptor not in self._paused:
            ready = dict(poller.poll())
            if wake in ready and descriptor not in ready:
                self._paused.add(descriptor)
                self._give_up(descriptor, OSError(errno.EAGAIN, "the wait for a reader that pauses was cut short"))
                break
            try:
                written = os.write(descriptor, rest[:_BLOCK_BYTES])
            except BlockingIOError:  # another program on this terminal has made it non-blocking
                continue
            except OSError as error:
                if not self._may_retry(descriptor, error):
                    break
                if woken.poll(_RETRY_SECONDS * 1000):
                    self._give_up(descriptor, error)
                    break
                continue

            rest = rest[written:]
            self._full.pop(descriptor, None)
            self._count_out(written)

        self._count_out(len(rest))
        if len(rest) < len(data):
            self._torn.discard(file)
            if rest and data[-len(rest) - 1] != _LINE_FEED:
                self._torn.add(file)

    def _find_file(self, descriptor: int) -> int:
        """One descriptor of the file."""
        return descriptor

    def _count_out(self, size: int) -> None:
        with self._changed:
            self._queued_bytes -= size
            if self._queued_bytes <= self._capacity_bytes // 2:
                self._release_waiting()

    def _may_retry(self, descriptor: int, error: OSError) -> bool:
        """Whether a write that has failed may still succeed; where not, the bytes are lost."""
        with self._changed:
            is_news = not (is_passing(error) and descriptor in self._full)
            if is_passing(error):
                since, _ = self._full.setdefault(descriptor, (time.monotonic(), error))
                is_lost = time.monotonic() - since >= self._full_seconds
            else:
                self._failures[descriptor] = error
                is_lost = True
            if is_lost:
                self._lost[descriptor] = error
                self._has_dropped = True
            if is_news and self._on_failure is not None:
                self._call_in_loop(self._on_failure, descriptor, error)
        return not is_lost

    def _give_up(self, descriptor: int, error: OSError) -> None:
        """Note that what a full disk or a reader has not taken is lost: the end does not wait for it."""
        with self._changed:
            self._lost[descriptor] = error
            self._has_dropped = True

    def _release_waiting(self) -> None:
        for event in self._waiting:
            self._call_in_loop(event.set)

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(function, *arguments)
