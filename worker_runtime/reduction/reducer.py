"""Gradient averaging: buckets are asked for while backward is still computing, and awaited before the optimizer steps.

Each bucket is one operation, asked for as soon as its gradients are complete on this rank; the sequencer finds the
order. A parameter that got no gradient here counts as zeros, since another rank may have one for it.

**Warm-up and overlap.** In its first steps an optimizer warms up: it asks for nothing before `synchronize()`, and a
negotiation of the ranks comes first. It tells which gradients are sparse and in which order they became ready; the
buckets are planned anew, and from then on the optimizer overlaps.

**Gradients that are thrown away** (`zero_grad()` after a backward pass of another loss, as for a GAN's discriminator)
cost nothing in the warm-up. Later the optimizer has asked for some of them, perhaps for others on other
ranks: all its buckets are completed on all ranks, and the optimizer warms up again, so that in a GAN what is
thrown away every time is soon not sent at all. A rank that uses what another throws away asks for its next bucket,
where that one asks for a negotiation: they wait for each other, which all ranks are told.

**Failures.** Every rank asks for each operation of a step once, whatever happens: one whose step fails says FAIL for
what it has not asked for, so that the others' step fails too, and all are in step. Then all warm up again. While the
gradients are made in a closure, the last bucket is held back, so that there is something to fail.

Long because one step is one story.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import (
    DeadlockError,
    ExcessBackwardError,
    HorovodInternalError,
    StepRevokedError,
    SupersededError,
    UnfinishedStepError,
)
from worker_runtime.reduction.bucket import Bucket, Entry, Step
from worker_runtime.reduction.communicator import Communicator, commit_alone
from worker_runtime.reduction.parameters import NamedParameters, TrackedParameters
from worker_runtime.reduction.plan import (
    PLAN,
    Negotiation,
    ask_negotiation,
    describe,
    make_buckets,
    read_negotiation,
)
from worker_runtime.reduction.replicas import ReplicaCheck
from worker_runtime.reduction.settings import Settings

# For how many steps an optimizer warms up after gradients were thrown away: one that does so regularly, for good.
_WARM_UP_STEPS = 100

Course = tuple[int, tuple[int, ...] | None]  # for how many steps nothing was thrown away, and the order of readiness


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters over the ranks of a process set, once per step.

    Args:
        list_parameters: those of the optimizer, named, in the same order on all ranks. Asked anew for each step: those
            that are added or unfrozen are reduced from then on.
        get_engine: the engine of the present generation; asked for anew at each use.
        settings: how gradients are combined.
        passes: backward passes per step; their gradients are summed locally before they are sent.
        groups: of parameters whose gradients travel together; looked up when a parameter is new.
        find_set: the number of the process set in the present generation.
        label: by which the ranks' reducers find each other; those of one label by the order in which they are made.
        check: of the replicas, in some steps; None for none.
    """

    def __init__(
        self,
        list_parameters: Callable[[], NamedParameters],
        get_engine: Callable[[], Engine],
        settings: Settings | None = None,
        *,
        passes: int = 1,
        groups: Mapping[torch.Tensor, int] | None = None,
        find_set: Callable[[], int] = lambda: 0,
        label: str = "",
        check: ReplicaCheck | None = None,
    ) -> None:
        self._get_engine = get_engine
        self._settings = settings or Settings()
        self.passes = passes  # may be changed: of parameters that have made none in this step
        self._tracked = TrackedParameters(list_parameters, {} if groups is None else groups, self)
        self._find_set = find_set
        self._label = label
        self._check = check
        self._lock = threading.RLock()  # backward runs in a thread for each device
        self._engine: Engine | None = None
        self._generation = 0
        self._communicator: Communicator | None = None
        self._buckets: list[Bucket] = []
        self._planned: object = None  # what the buckets of a warm-up step were planned from
        self._sparse_dims: dict[
            Entry, int
        ] = {}  # other than none, with which an overlapped step's buckets were planned
        self._step = Step()
        self._is_overlapped = False
        self._steps_since_discard = 0
        self._order: tuple[int, ...] | None = None  # in which gradients become ready, once that is known
        self._preparations = 0  # within which gradients are made at present
        self._failures = 0  # steps that have failed here, of which the others were told
        self._has_changed = False  # the parameters have, since the last step
        self._has_reduced = False  # some step, with the present engine
        self._superseded: str | None = None  # a parameter that a newer reducer has
        self._enter()
        self._tracked.update()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The parameters whose gradients are reduced."""
        return tuple(self._tracked.entries)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """As they are planned at present."""
        return tuple(self._buckets)

    @property
    def handles(self) -> dict[torch.Tensor, Handle[Any]]:
        """What is in flight, by parameter."""
        return {entry.parameter: handle for bucket, handle in self._step.handles.items() for entry in bucket.entries}

    def completes_bucket(self, entry: Entry) -> bool:
        """Whether the gradient of `entry` is the last one that its bucket lacks."""
        bucket = entry.bucket
        return bucket is not None and len(self._step.local.get(bucket, ())) == len(bucket.entries) - 1

    @property
    def is_reduced(self) -> bool:
        """Whether this rank's gradients are what `synchronize()` made: none was added to, or taken away, since then."""
        is_between = self._step.follows_reduced and not self._step.has_begun
        return is_between and not any(
            entry.parameter.requires_grad and entry.parameter.grad is None for entry in self._tracked.entries
        )

    @property
    def course(self) -> Course:
        """How gradients travel in the next step: of two jobs, alike only where this is."""
        return self._steps_since_discard, self._order

    def resume(self, course: Course) -> None:
        """Begin as another job has gone on, so that sums are made in the same order; the same on all ranks."""
        self.discard()
        with self._lock:
            steps, order = course
            is_fitting = order is not None and len(order) == len(self._tracked.entries)
            self._begin_warm_up(steps)
            self._order = order if is_fitting else None

    def are_all_reduced(self) -> bool:
        """Whether those of all ranks are, which all must ask: a backward pass may have touched them on one alone.

        Raises:
            HorovodInternalError: the ranks could not be asked.
        """
        with self._lock:
            self._enter()
        if not self._has_reduced:
            return False  # ranks that have just come would not ask
        others = torch.tensor([not self.is_reduced], dtype=torch.float32, device="cpu")
        return not self.average(others, part="others").item()

    def synchronize(self) -> None:
        """Wait until every parameter's gradient is the reduced one. Alone in its set, a rank has them already.

        Raises:
            SupersededError: a newer reducer has one of the parameters.
            HorovodInternalError: a reduction failed, or the ranks do not have the same gradients; the gradients are
                then undefined.
        """
        with self._lock, torch.no_grad():
            step = self._step
            is_asked = self._is_overlapped and step.has_ready
            if is_asked and all(entry.parameter.grad is None for entry in step.list_ready()):
                self.discard()  # what was taken during backward the program has thrown away, and made nothing since
            while (comm := self._enter()) is not None:
                try:
                    self._reduce(comm)
                except StepRevokedError:
                    continue  # with those that are left, from the gradients that were kept
                self._step.follows_reduced = self._has_reduced = True
                return
            self._end_step()
            commit_alone(self._get_engine(), self._find_set)

    def discard(self) -> None:
        """Throw away what this step's backward passes have made; the gradients are undefined then.

        Where gradients are complete, all ranks must come here: what was asked for is completed.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        with self._lock, torch.no_grad():
            # What an engine that has gone was asked for has ended with it. The place in the next one is taken when
            # gradients are there: reducers find each other by the order in which they come, and only those that were
            # there before have something to throw away, or a state to restore.
            is_over = self._get_engine() is not self._engine
            comm = None if is_over else self._enter()
            if comm is not None and self._step.has_ready:
                if self._is_overlapped:
                    try:
                        with self._completing(comm):
                            is_of_all = self._complete(comm, takes=False)
                    except StepRevokedError:
                        self._enter()
                        is_of_all = True
                    if is_of_all:
                        self._begin_warm_up(-_WARM_UP_STEPS)
                else:
                    self._steps_since_discard = -_WARM_UP_STEPS
            self._end_step()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While a step's gradients are made for `synchronize`: if that fails, the other ranks' step does, too.

        The lock is not held meanwhile: backward may record gradients from threads of its own.
        """
        with self._lock:
            comm = self._enter()
            failures = self._failures
            self._preparations += 1
        try:
            if comm is not None:
                self._refuse_superseded()
            yield
        except StepRevokedError:
            raise
        except BaseException as error:
            with self._lock, torch.no_grad():
                if self._communicator is not None and self._failures == failures:  # else it is told already
                    self._fail(self._communicator, error)
            raise
        finally:
            with self._lock:
                self._preparations -= 1

    def average(self, value: torch.Tensor, note: str = "", part: str = "loss") -> torch.Tensor:
        """A value of this rank's combined with those of the others as gradients are: the loss that belongs to them.

        With a note, all ranks must have the same, and are told of it where they have not; `part` is what they call it.
        """
        with self._lock, torch.no_grad():
            comm = self._enter()
            if comm is None:
                return value.detach()
            part = f"allreduce.{{}}.{part}"
            reduction = self._settings.how.reduction
            how = Combination(Reduction.SUM if reduction is Reduction.SUM else Reduction.AVERAGE)
            try:
                operation = Allreduce([value.detach()], how, comm.members, part.format(comm.name))
                operation.question = operation.question.add_note(note)
            except BaseException as error:
                comm.fail(part, error)
                raise
            return comm.engine.run(operation)[0]

    def supersede(self, name: str) -> None:
        """See `Recorder`. What is under way is completed.

        Raises:
            UnfinishedStepError: there are gradients under way, which would be lost.
        """
        with self._lock, torch.no_grad():
            if self._superseded is None:
                for entry in self._tracked.entries:
                    gradient = entry.parameter.grad
                    if gradient is not None and gradient is self._step.find_local(entry) and gradient.count_nonzero():
                        raise UnfinishedStepError(entry.name)
                with suppress(HorovodInternalError):
                    self.discard()
                self._superseded = name
                self._tracked.detach()
                self._begin_warm_up(0)

    def record_gradient(self, entry: Entry) -> None:
        """A backward pass has accumulated into the gradient of `entry`.

        Raises:
            ExcessBackwardError: there were more passes than one step has.
        """
        step, bucket = self._step, entry.bucket
        gradients = None if bucket is None else step.open.get(bucket)
        if bucket is None or gradients is None or entry in gradients or self.passes > 1:
            self._record(entry)
            return
        gradients[entry] = entry.parameter.grad  # most come here, and no further; so nothing is locked
        latest = step.latest
        if len(gradients) == len(bucket.entries) or (latest is not None and latest.terms is None):
            self._go_on(step, bucket)

    def _record(self, entry: Entry) -> None:
        """Any gradient; see `record_gradient`."""
        with self._lock:
            comm = self._enter()
            if comm is None:
                return
            if not self._step.has_begun:
                self._begin(comm)
            bucket = entry.bucket
            if entry in self._step.ready or (bucket is not None and entry in self._step.local.get(bucket, ())):
                self._restart(entry)
            step, bucket = self._step, entry.bucket
            is_single = self.passes == 1 and not step.passes_left
            if not is_single:
                passes_left = step.passes_left[entry] = step.passes_left.get(entry, self.passes) - 1
                if passes_left > 0:
                    return
            if bucket is None:
                step.ready[entry] = entry.find_version()
                return
            if bucket.copies_each:
                with torch.no_grad():
                    bucket.copy_in(step, entry)
            else:
                gradients = step.local.setdefault(bucket, {})
                gradients[entry] = entry.parameter.grad
                if is_single:
                    step.open[bucket] = gradients
            self._go_on(step, bucket)

    def _go_on(self, step: Step, bucket: Bucket) -> None:
        """A bucket has got a gradient: ask for it if that was the last one, else run what was released."""
        with self._lock:
            comm = self._enter()
            if comm is None or self._step is not step:
                return
            is_last = bucket is self._buckets[-1]
            is_full = len(step.local[bucket]) == len(bucket.entries) and bucket not in step.handles
            if is_full and not (is_last and self._preparations):
                bucket.take(step)
                with suppress(StepRevokedError):  # whatever comes next enters the new generation
                    bucket.submit(comm, step, at_once=True, is_awaited=is_last)  # the step is near; no thread wakes
                step.latest = step.handles.get(bucket)
            elif step.latest is not None and step.latest.terms is None:
                comm.engine.progress()

    def _enter(self) -> Communicator | None:
        """The place in the present generation.

        With a new engine everything begins anew. Where the same one has gone on without ranks that were lost, the
        step goes on too: with the local gradients, of which all are asked for again.
        """
        engine = self._get_engine()
        if engine is not self._engine:
            self._engine, self._generation = engine, engine.generation
            self._communicator = Communicator.create(engine, self._find_set(), self._label)
            self._has_reduced = False
            self._end_step()
            if self._check is not None:
                self._check.begin()
            self._begin_warm_up(0)
        elif self._generation != engine.generation:
            self._generation = engine.generation
            self._communicator = None if self._communicator is None else self._communicator.rebind()
            self._step = self._step.restart()
            if self._check is not None:
                self._check.withdraw()
            self._begin_warm_up(0)
        return self._communicator

    def _reduce(self, comm: Communicator) -> None:
        """Complete the step; see `synchronize`."""
        was_overlapped = self._is_overlapped
        self._adapt(comm)
        with self._completing(comm):
            if self._superseded is None:
                self._has_changed |= self._tracked.update()
            self._refuse_superseded()
            if self._check is not None:
                self._check.ask(comm)
            if not was_overlapped:
                self._explore(comm)
            elif self._has_changed:
                self._extend(comm)
            self._complete(comm)
            if self._check is not None:
                self._check.finish(comm)
            step = self._step
            indices = (-1 if handle.terms is None else handle.terms.index for handle in step.handles.values())
            comm.commit(max(indices, default=-1))  # until then the local gradients may be needed again
            for bucket in self._buckets:
                bucket.install(step)
        negotiation: Negotiation | None = step.negotiation
        has_changed = self._has_changed
        self._has_changed = False
        self._end_step()
        self._steps_since_discard += 1
        if has_changed:
            self._begin_warm_up(0)
        elif negotiation is not None and negotiation.is_of_all and negotiation.steps_since_discard > 0:
            self._begin_overlap(comm, negotiation)

    def _refuse_superseded(self) -> None:
        if self._superseded is not None:
            self._tracked.detach()
            raise SupersededError(self._superseded)

    def _begin(self, comm: Communicator) -> None:
        """The first gradient of a step is there; once for each step, since it looks at all parameters."""
        self._step.has_begun = True
        self._adapt(comm)

    def _adapt(self, comm: Communicator) -> None:
        """Where parameters have another form than when the buckets were planned, plan anew.

        All ranks do so before they ask for anything of the step; those that have not the same are told. A program that
        changes a form later finds its gradients in the new form, and is heard in the next step.
        """
        if self._is_under_way() or not self._tracked.update_forms() or not self._is_overlapped:
            return
        entries = [entry for bucket in self._buckets for entry in bucket.entries]
        dims = [self._sparse_dims.get(entry, 0) for entry in entries]
        self._plan_overlap(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=range(len(entries))))

    def _is_under_way(self) -> bool:
        """Whether gradients were asked for, or have been brought where they travel."""
        return (self._is_overlapped and self._step.has_ready) or bool(self._step.handles)

    @contextmanager
    def _completing(self, comm: Communicator) -> Iterator[None]:
        """While all that belongs to the step is asked for and awaited."""
        try:
            yield
        except StepRevokedError:
            raise  # nothing has failed: the step is run again
        except BaseException as error:
            self._fail(comm, error)
            raise

    def _fail(self, comm: Communicator, error: BaseException) -> None:
        """The step has failed here, and ends; the others are told."""
        self._failures += 1
        if not isinstance(error, DeadlockError):  # else nothing is pending on any rank, and all begin anew
            self._tell(comm, error)
        for handle in self._step.handles.values() if isinstance(error, Exception) else ():  # an interrupt does not wait
            with suppress(Exception):
                comm.engine.wait(handle)  # so that nothing is written to gradients afterwards
        if self._check is not None:
            self._check.withdraw()
        self._begin_warm_up(0)
        self._end_step()

    def _tell(self, comm: Communicator, error: BaseException) -> None:
        """Fail all that the others ask for in this step, and this rank has not asked for."""
        if self._check is not None:
            self._check.fail(comm, error)
        if self._is_overlapped and self._superseded is None:
            with suppress(Exception):  # the failure that was first is told
                self._adapt(comm)
                self._tracked.update()
                self._extend(comm)  # the others ask for parameters that are new as well
        if not self._is_overlapped and self._step.asked is None:
            comm.fail(PLAN, error)
        for bucket in self._buckets if self._is_overlapped or self._step.negotiation is not None else ():
            if bucket not in self._step.handles:
                comm.fail(bucket.part, error)

    def _explore(self, comm: Communicator) -> None:
        """In a warm-up step: find out what all have, and plan accordingly."""
        entries = tuple(self._tracked.entries)
        note = f"{self._settings.describe()}, {describe(entries)}"
        step = self._step
        step.asked = ask_negotiation(comm, entries, step.ready, self._steps_since_discard, note)
        step.negotiation = negotiation = read_negotiation(comm, step.asked, len(entries))
        planned = (comm, entries, tuple(entry.form for entry in entries), negotiation.sparse_dims)
        if planned != self._planned:
            dims = negotiation.sparse_dims
            self._buckets = make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order)
            self._planned = planned

    def _extend(self, comm: Communicator) -> None:
        """In an overlapped step: let parameters that are new travel, too."""
        new = [entry for entry in self._tracked.entries if entry.bucket is None]
        if new:
            self._buckets += make_buckets(new, self._settings, comm, first_number=len(self._buckets))

    def _complete(self, comm: Communicator, *, takes: bool = True) -> bool:
        """Ask for all buckets, whether they are full or not, and wait; whether no rank had joined at the last one.

        Args:
            comm: among whom.
            takes: the gradients that were not taken are; else they do not matter, and are left alone.
        """
        for bucket in self._buckets if takes else ():
            bucket.refuse_changes(self._step)
        self._ask_rest(comm, takes=takes)
        if not self._buckets:
            return True
        last = self._step.handles[self._buckets[-1]]
        comm.engine.await_answer(last)  # before any data: its question leaves now, and it runs beside the others
        failures = []
        for bucket in self._buckets:
            try:
                bucket.finish(comm, self._step)
            except HorovodInternalError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return last.terms is None or not last.terms.joined

    def _ask_rest(self, comm: Communicator, *, takes: bool) -> None:
        """Ask for the buckets that were not asked for during backward."""
        step = self._step
        for bucket in self._buckets:
            if bucket not in step.handles:
                if takes:
                    bucket.take(step)
                bucket.submit(comm, step, is_awaited=bucket is self._buckets[-1])

    def _restart(self, entry: Entry) -> None:
        """A gradient was complete, and backward has made another: all is well if the first one was thrown away."""
        gradient = entry.parameter.grad
        if entry.bucket is None:
            # Autograd adds to a gradient in place, so that its version grows; that of a new one begins at 0.
            is_new = gradient is None or gradient._version <= self._step.ready[entry]  # noqa: SLF001 - as above
        else:
            is_new = gradient is not self._step.find_local(entry)
        if not is_new:
            raise ExcessBackwardError(entry.name, self.passes)
        self.discard()
        if self._communicator is not None:
            self._begin(self._communicator)

    def _begin_overlap(self, comm: Communicator, negotiation: Negotiation) -> None:
        """Ask during backward from now on, in buckets that are complete as early as can be."""
        self._is_overlapped, self._planned = True, None
        entries, dims = self._tracked.entries, negotiation.sparse_dims
        self._sparse_dims = {entry: number for entry, number in zip(entries, dims, strict=True) if number}
        self._order = self._order or negotiation.order
        self._plan_overlap(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order))

    def _plan_overlap(self, buckets: list[Bucket]) -> None:
        self._buckets = buckets
        for bucket in buckets:
            for entry in bucket.entries:
                entry.bucket = bucket

    def _begin_warm_up(self, steps_since_discard: int) -> None:
        self._is_overlapped, self._steps_since_discard, self._order = False, steps_since_discard, None
        self._buckets, self._planned = [], None
        self._sparse_dims = {}
        for entry in self._tracked.entries:
            entry.bucket = None

    def _end_step(self) -> None:
        """The next step begins anew."""
        self._step = Step()
