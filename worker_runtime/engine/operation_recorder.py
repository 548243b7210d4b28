"""Tells a timeline's recorder when operations of this rank begin and end.

A gloo operation ends in a thread of gloo, often long before the program waits for it: the end of its last work counts.
An operation on CUDA tensors ends when the program has its result, and not when the GPU has run it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker_runtime.coordination.messages import Arrived
from worker_runtime.coordination.ordering.requests import Kind, Release
from worker_runtime.groups.torch_groups import Work
from worker_runtime.timeline.recorder import Recorder
from worker_runtime.timeline.trace import Arrivals, Run


class _Progress:
    """An operation between its start and its end.

    started, ended: `time.monotonic()`; ended: of its last work; 0.0 while one runs, or if that is not known.
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

    def note(self, text: str) -> None:
        """Note that something has happened to the job."""
        self._recorder.note(text)
