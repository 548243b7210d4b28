"""One generation as an executor goes through it: its process sets, its torch groups, its word with the sequencer.

A job that outlives its workers makes a new attempt after each loss, and what is pending moves from one to the next. So
whatever belongs to one generation alone stands here, and an attempt that is over can do nothing any more to what has
moved on: it looks, under the executor's lock, whether it is still the present one.
"""

import math
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from worker_runtime.coordination.bundles import Unpack
from worker_runtime.coordination.driver import Driver
from worker_runtime.coordination.handle import Handle
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.ordering.questions import Kind, Release
from worker_runtime.engine.process_sets import ProcessSets
from worker_runtime.engine.runner import Runner
from worker_runtime.groups.group import Group
from worker_runtime.groups.torch_groups import Work
from worker_runtime.groups.works import FailedWork, describe_cause


class Owner(Protocol):
    """What an attempt needs of its executor."""

    askers: set[int]
    silence_seconds: float

    def note_release(self, terms: Release) -> None:
        """Something is run: what the executor counts may have to be counted on, or anew."""

    def conclude(self, handles: Sequence[Handle[object]], terms: Sequence[Release], results: Sequence[object]) -> None:
        """Operations were released and finished together."""

    def find_join_device(self) -> torch.device | None:
        """Where a rank that has joined makes neutral elements for operations on CUDA."""

    def refuse(self, handle: Handle[object], reason: str, *, is_deadlock: bool) -> None:
        """The operation will not run."""

    def end_attempt(self, attempt: "Generation", reason: str) -> None:
        """Nothing will be answered any more in this attempt."""


class Generation:
    """One generation; for any thread. Its members may not be connected yet: see `connect`.

    Args:
        owner: whose operations run in it.
        lock: the owner's.
        number: of the generation; 0 in a world of one.
        rank: of this worker.
        size: of the generation.

    number, rank, size: these.
    sets: the process sets.
    driver: None where there is nobody to talk to, or not yet.
    seen: the highest index of a release that was heard of; -1 for none.
    failure: why nothing is answered any more; None while something is.
    stops_from: the index of the first release that comes after a stop notice for the job; infinite while there is none.
    is_closed: goodbye was said to the sequencer.
    failed_at: when that was noticed (`time.monotonic()`).
    """

    def __init__(self, owner: Owner, lock: threading.RLock, number: int = 0, rank: int = 0, size: int = 1) -> None:
        self.number = number
        self.rank = rank
        self.size = size
        self.sets = ProcessSets(rank, size, number)
        self.runner = Runner(rank, None, self.sets)
        self.driver: Driver | None = None
        self.seen = -1
        self.failure: str | None = None
        self.failed_at = 0.0
        self.stops_from = math.inf
        self._owner = owner
        self._lock = lock
        self.is_closed = False
        self._is_over = False

    def connect(self, group: Group, link: Link) -> None:
        """The members are connected; from now on operations can run, in a world of one they always can.

        Args:
            group: of the generation, which this owns from now on.
            link: to its sequencer; the same.
        """
        self.runner = Runner(self.rank, group.torch_groups, self.sets)
        link.limit_silence(self._owner.silence_seconds)
        self.driver = Driver(link, self, self._owner.askers)

    def end(self) -> None:
        """What is still released is not run any more. The caller holds the owner's lock."""
        self._is_over = True

    def close(self, running: Sequence[Sequence[Work]]) -> bool:
        """Say goodbye, where that was not done, and end the groups; see `Runner.close`."""
        if self.driver is not None and not self.is_closed:
            self.is_closed = True
            self.driver.leave()
        return self.runner.close(running)

    def count_members(self, process_set: int) -> int:
        """How many members a set has. For the driver."""
        return self.sets.count(process_set)

    def list_members(self, process_set: int) -> tuple[int, ...]:
        """A set's ranks. For the driver."""
        return self.sets.list_ranks(process_set)

    def perform(self, handle: Handle[object], terms: Release, payload: memoryview) -> None:
        """Run a released operation. For the driver."""
        self.seen = terms.index
        signature = terms.question.signature
        works: Sequence[Work] = ()
        self._owner.note_release(terms)
        try:
            has_travelled = signature.payload_dtype and (payload or signature.kind is not Kind.ALLGATHER)
            if not has_travelled and signature.kind is not Kind.COMMIT:
                begun = self.runner.start(handle.operation, terms)
                if isinstance(begun, RuntimeError):
                    self.runner.interrupt()
                    begun = (FailedWork(begun),)
                works = begun
            with self._lock:
                if not self._is_over:
                    handle.begin(terms, works, payload)
        except BaseException:  # of a signal's handler, before the handle had what was begun
            self.runner.is_unsure = True
            raise

    def conclude(self, handles: Sequence[Handle[object]], terms: Sequence[Release], unpack: Unpack) -> bool:
        """Finish operations that were released together. For the driver."""
        self.seen = terms[-1].index
        with self._lock:  # in one: results that were written in place, and then do not count, would be lost
            if self._is_over:
                return True
            results = unpack()
            if results is None:
                return False
            self._owner.conclude(handles, terms, results)
        return True

    def perform_neutral(self, terms: Release) -> None:
        """Take part in an operation for which this rank, having joined, did not ask. For the driver."""
        self.seen = terms.index
        self._owner.note_release(terms)
        error = self.runner.take_part(terms, self._owner.find_join_device())
        if error is not None:
            self.give_up(f"a joined rank could not take part in {terms.question.name}: {describe_cause(error)}")

    def refuse(self, handle: Handle[object], reason: str, *, is_deadlock: bool) -> None:
        """The operation will not run. For the driver."""
        with self._lock:
            if not self._is_over:
                self._owner.refuse(handle, reason, is_deadlock=is_deadlock)

    def note_stopping(self, index: int) -> None:
        """A stop notice has come for the job. For the driver."""
        self.stops_from = index

    def give_up(self, reason: str) -> None:
        """Nothing will be answered any more: what runs is interrupted. For the driver."""
        with self._lock:  # whoever submits sees the failure, or is seen by the owner
            if self.failure is None:
                self.failed_at = time.monotonic()
                self.failure = reason  # the cause of all that follow: the connections are closed
        self._owner.end_attempt(self, reason)
        self.runner.interrupt()
