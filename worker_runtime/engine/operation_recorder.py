"""Tells a timeline's recorder when operations of this rank begin and end.

A gloo operation ends in a thread of gloo, often long before the program waits for it: the end of its last work counts.
An operation on CUDA tensors ends when the program has its result, and not when the GPU has run it.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker_runtime.coordination.messages import Arrived, Waited
from worker_runtime.coordination.ordering.requests import Kind, Release
from worker_runtime.coordination.wire import RankSpan
from worker_runtime.groups.torch_groups import Work
from worker_runtime.timeline.event_queue import HAND_ON_SECONDS, EventQueue
from worker_runtime.timeline.recorder import Recorder
from worker_runtime.timeline.trace import Arrivals, Clock, Run, Wait

_MOST_SENT = 1000  # waits, in a message


class _Progress:
    """An operation between its start and its end.

    Args:
        works: the works of the operation.

    started: when it started (`time.monotonic()`).
    ended: when its last work ended; 0.0 while one runs, or where the end is unknown.
    """

    __slots__ = ("_left", "ended", "started")

    def __init__(self, works: Sequence[Work]) -> None:
        self.started = time.monotonic()
        self.ended = 0.0
        self._left = len(works)
        for work in works:
            find_future: Callable[[], torch.futures.Future[Any]] | None = getattr(work, "get_future", None)
            if find_future is not None:
                find_future().add_done_callback(self._note)

    def _note(self, _: torch.futures.Future[Any]) -> None:
        self._left -= 1
        if not self._left:
            self.ended = time.monotonic()


class OperationRecorder:
    """Notes the operations of one engine.

    Args:
        recorder: writes the timeline.
        name_backend: names the backend that moves tensors of a device, "cpu" or "cuda".
    """

    def __init__(self, recorder: Recorder, name_backend: Callable[[str], str]) -> None:
        self._recorder = recorder
        self._name_backend = name_backend
        self._running: dict[tuple[int, str], _Progress] = {}
        self._offsets: dict[int, float] = {}  # by rank: its clock's seconds behind this one, and a message's time

    def note_arrivals(self, arrived: Arrived) -> None:
        """Note releases, with the times of the ranks' requests."""
        for process_set, name, kind, released, asked in arrived.parts:
            self._recorder.note_arrivals(Arrivals(process_set, name, kind.name, released, asked))

    def note_alone(self, release: Release, rank: int) -> None:
        """Note an operation of a set that has only this rank."""
        now = time.monotonic()
        request = release.request
        kind = request.signature.kind.name
        self._recorder.note_arrivals(Arrivals(request.process_set, request.name, kind, now, ((rank, now),)))

    def note_start(self, release: Release, works: Sequence[Work]) -> None:
        """Note that an operation communicates."""
        request = release.request
        if release.request.signature.device != "cpu":
            works = ()
        self._running[request.process_set, request.name] = _Progress(works)

    def note_end(self, release: Release) -> None:
        """Note that an operation is done; only the first time counts."""
        now = time.monotonic()
        request = release.request
        key = request.process_set, request.name
        progress = self._running.pop(key, None)
        released = self._recorder.find_release(*key)
        if released is None:
            return

        signature = request.signature
        kind = signature.kind.name
        started, ended = released, now
        if progress is not None:
            started, ended = progress.started, progress.ended or now
        if len(release.members) == 1:
            activity = ""
        elif signature.payload_dtype or signature.kind is Kind.COMMIT:
            activity = f"SEQUENCER_{kind}"
        else:
            activity = f"{self._name_backend(signature.device).upper()}_{kind}"
        run = Run(*key, kind, released, started, ended, activity, signature.dtypes, signature.shapes)
        self._recorder.note_run(run)

    def note_wait(self, name: str, began: float) -> None:
        """Note that rank 0's program has waited for an operation since this time."""
        self._recorder.note_wait(Wait(0, name, began, time.monotonic()))

    def note_span(self, row: str, name: str, began: float, ended: float) -> None:
        """Note what rank 0's time was spent on, in one of its rows."""
        self._recorder.note_wait(Wait(0, name, began, ended, row))

    def note_waited(self, waited: Waited) -> None:
        """Note what another rank's time was spent on, by this rank's clock.

        The offset of the other clock is known best from the message that took the least time so far.
        """
        offset, known = waited.received - waited.sent, self._offsets.get(waited.rank)
        if known is None or offset < known:
            self._offsets[waited.rank] = offset
            self._recorder.note_clock(Clock(waited.rank, offset))
        offset = self._offsets[waited.rank]
        for name, began, ended, row in waited.waits:
            self._recorder.note_wait(Wait(waited.rank, name, began + offset, ended + offset, row))

    def note(self, text: str) -> None:
        """Note that something has happened to the job."""
        self._recorder.note(text)


class WaitSender:
    """Sends rank 0 what the time of this rank was spent on; its thread ends with `close`.

    Args:
        send: sends some waits to the present generation's rank 0.
    """

    def __init__(self, send: Callable[[Sequence[RankSpan]], None]) -> None:
        self._send = send
        self._queue: EventQueue[RankSpan] = EventQueue(self._send_all, lambda _: None)

    def note_wait(self, name: str, began: float) -> None:
        """Note that this rank's program has waited for an operation since this time."""
        self._queue.put((name, began, time.monotonic(), ""))

    def note_span(self, row: str, name: str, began: float, ended: float) -> None:
        """Note what this rank's time was spent on, in one of its rows."""
        self._queue.put((name, began, ended, row))

    def close(self) -> None:
        """Send the remaining waits, and end the thread."""
        self._queue.close()

    def _send_all(self, waits: Sequence[RankSpan], _: int) -> None:
        for start in range(0, len(waits), _MOST_SENT):
            self._send(waits[start : start + _MOST_SENT])


class WaitReceiver:
    """Lets rank 0 receive the others' waits, also while its program calls nothing; its thread ends with `close`.

    Args:
        listen: processes the messages that have arrived.
    """

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen = listen
        self._owner = os.getpid()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hvd-timeline-waits", daemon=True)
        self._thread.start()

    def close(self, *, awaits_last: bool) -> None:
        """End the thread.

        Args:
            awaits_last: wait first for what the others have noted up to now.
        """
        if os.getpid() != self._owner:
            return  # a forked child does not have the thread
        if awaits_last:
            time.sleep(2 * HAND_ON_SECONDS)
            self._listen()
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closing.wait(HAND_ON_SECONDS):
            self._listen()
