"""The buckets of a reducer, from its warm-up to the overlap with backward, and back.

A new plan begins with a warm-up. After a step without discarded gradients the buckets are planned in the order in which
gradients became ready; from then on the steps overlap.
"""

from collections.abc import Sequence
from typing import Any

from worker_runtime.reduction.bucket import Bucket, Entry, Step
from worker_runtime.reduction.communicator import Communicator
from worker_runtime.reduction.parameters import TrackedParameters
from worker_runtime.reduction.plan import Negotiation, ask_negotiation, describe, make_buckets, read_negotiation
from worker_runtime.reduction.settings import Settings

# The number of warm-up steps after gradients were discarded. An optimizer that discards regularly stays in the warm-up.
_WARM_UP_STEPS = 100

PlanInputs = tuple[int, tuple[int, ...] | None]  # the number of steps since a discard, and the order of readiness


class BucketPlan:
    """The plan of a reducer's buckets.

    Args:
        tracked: the parameters.
        settings: how gradients are combined.

    buckets: the present buckets, in the order in which they become complete.
    is_overlapped: steps submit their buckets during backward; else they warm up.
    """

    def __init__(self, tracked: TrackedParameters, settings: Settings) -> None:
        self.buckets: list[Bucket[Any]] = []
        self.is_overlapped = False
        self._tracked = tracked
        self._settings = settings
        self._planned: object = None  # the inputs of the buckets of a warm-up step
        self._steps_since_discard = 0
        self._order: tuple[int, ...] | None = None  # the order in which gradients become ready, once it is known

    @property
    def inputs(self) -> PlanInputs:
        """The inputs of the plan. Two jobs sum in the same order only where these are the same."""
        return self._steps_since_discard, self._order

    def resume(self, inputs: PlanInputs) -> None:
        """Begin with the inputs of another job."""
        steps, order = inputs
        self.begin_warm_up(steps)
        if order is not None and len(order) == len(self._tracked.entries):
            self._order = order

    def begin_warm_up(self, steps_since_discard: int = 0) -> None:
        """Drop the buckets, and warm up."""
        self.is_overlapped, self._steps_since_discard, self._order = False, steps_since_discard, None
        self.buckets, self._planned = [], None
        for entry in self._tracked.entries:
            entry.bucket = None

    def note_discard(self) -> None:
        """Warm up for longer, since gradients were discarded."""
        if self.is_overlapped:
            self.begin_warm_up(-_WARM_UP_STEPS)
        else:
            self._steps_since_discard = -_WARM_UP_STEPS

    def negotiate(self, comm: Communicator, step: Step) -> Negotiation:
        """In a warm-up step: negotiate, and plan the buckets from the result.

        Raises:
            HorovodInternalError: the ranks have different gradients, or the operation failed.
        """
        entries = tuple(self._tracked.entries)
        negotiation = self._agree(comm, step, entries)
        planned = (comm, entries, tuple(entry.form for entry in entries), negotiation.sparse_dims)
        if planned != self._planned:
            dims = negotiation.sparse_dims
            self.buckets = make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order)
            self._planned = planned
        return negotiation

    def _agree(self, comm: Communicator, step: Step, entries: Sequence[Entry]) -> Negotiation:
        """Negotiate about the gradients of these entries."""
        note = f"{self._settings.describe()}, {describe(entries)}"
        step.asked = ask_negotiation(comm, entries, step.ready, self._steps_since_discard, note)
        negotiation = read_negotiation(comm, step.asked, len(entries))
        step.has_negotiated = True
        for entry, dims in zip(entries, negotiation.sparse_dims, strict=True):
            entry.sparse_dims = dims
        return negotiation

    def list_new(self) -> list[Entry]:
        """In an overlapped step: the parameters that the plan lacks."""
        return [entry for entry in self._tracked.entries if entry.bucket is None]

    def extend(self, comm: Communicator, step: Step) -> None:
        """In an overlapped step: add buckets for new parameters, after a negotiation of them alone.

        Raises:
            HorovodInternalError: the ranks have different gradients, or the operation failed.
        """
        if new := self.list_new():
            dims = self._agree(comm, step, new).sparse_dims
            first = len(self.buckets)
            self.buckets += make_buckets(new, self._settings, comm, sparse_dims=dims, first_number=first)

    def adapt(self, comm: Communicator) -> None:
        """Plan the same buckets again, for parameters that have other forms now."""
        entries = [entry for bucket in self.buckets for entry in bucket.entries]
        dims = [entry.sparse_dims for entry in entries]
        self._overlap(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=range(len(entries))))

    def count_step(self, comm: Communicator, negotiation: Negotiation | None, *, has_changed: bool) -> None:
        """After a complete step: decide whether the next one warms up or overlaps.

        Args:
            comm: the communicator.
            negotiation: that of the step; None where the step was overlapped.
            has_changed: the parameters have changed.
        """
        self._steps_since_discard += 1
        if has_changed:
            self.begin_warm_up()
        elif negotiation is not None and negotiation.is_of_all and negotiation.steps_since_discard > 0:
            entries, dims = self._tracked.entries, negotiation.sparse_dims
            self._planned = None
            self._order = self._order or negotiation.order
            self._overlap(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order))

    def _overlap(self, buckets: list[Bucket[Any]]) -> None:
        """Submit during backward from now on, in these buckets."""
        self.is_overlapped, self.buckets = True, buckets
        for bucket in buckets:
            for entry in bucket.entries:
                entry.bucket = bucket
