"""Gradient averaging: buckets are submitted while backward runs, and awaited before the optimizer steps.

Each bucket is one operation. It is submitted when its gradients are complete on this rank; the sequencer fixes the
order of all ranks. A parameter without a gradient here counts as zeros, since another rank may have a gradient for it.

**Warm-up and overlap.** In its first steps an optimizer warms up: it submits nothing before `synchronize()`, where the
ranks first negotiate which gradients are sparse and in which order they become ready. After that the buckets are
planned, and the optimizer overlaps: it submits them during backward. A result is sparse where the plan says so, and not
where a rank's own gradient is: optimizers round sparse and dense gradients differently.

**Discarded gradients** (`zero_grad()` after a backward pass of another loss, as for a GAN's discriminator) cost nothing
in the warm-up. In an overlapped step some buckets are already submitted, perhaps different ones on each rank. So all
buckets are completed on all ranks, and the optimizer warms up again. In a GAN, gradients that are always discarded are
soon not sent at all. If a rank uses gradients that another one discards, the first submits its next bucket and the
other a negotiation: they wait for each other, which all ranks report as a DeadlockError.

**Failures.** Every rank submits each operation of a step exactly once. A rank whose step fails sends FAIL for the
operations that it has not submitted, so that the step fails on all ranks. Then all warm up again. While a closure
computes gradients, the last bucket is held back, so that an operation is left to fail.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import (
    DeadlockError,
    ExcessBackwardError,
    HorovodInternalError,
    StepRevokedError,
    SupersededError,
    UnfinishedStepError,
)
from worker_runtime.reduction.bucket import Bucket, Contents, Entry, Step
from worker_runtime.reduction.bucket_plan import BucketPlan, PlanInputs
from worker_runtime.reduction.communicator import Communicator, complete_step_alone
from worker_runtime.reduction.finite import FiniteCheck, Scale
from worker_runtime.reduction.idle_gpu import IdleGpuWatch
from worker_runtime.reduction.parameters import NamedParameters, TrackedParameters
from worker_runtime.reduction.plan import PLAN
from worker_runtime.reduction.replicas import ReplicaCheck
from worker_runtime.reduction.settings import Settings


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters over the ranks of a process set, once per step.

    Args:
        list_parameters: returns the optimizer's parameters with their names, in the same order on all ranks. It is
            called in each step, so that added and unfrozen parameters are reduced too.
        get_engine: returns the engine of the present generation.
        settings: how gradients are combined.
        passes: the number of backward passes per step, whose gradients are summed locally.
        groups: the group of some parameters; looked up when a parameter is new.
        find_set: returns the number of the process set in the present generation.
        label: distinguishes reducers; those of one label are matched by the order of their creation.
        check: compares the replicas in some steps; None for no check.
        finite: examines the gradients before they are reduced; None for no check.
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
        finite: FiniteCheck | None = None,
    ) -> None:
        self._get_engine = get_engine
        self._settings = settings or Settings()
        self.passes = passes  # a change applies to parameters without a backward pass in this step
        self._tracked = TrackedParameters(list_parameters, {} if groups is None else groups, self)
        self._idle_gpu = IdleGpuWatch(self._tracked)
        self._find_set = find_set
        self._label = label
        self._check = check
        self._finite = finite
        self._checks = [each for each in (check, finite) if each is not None]
        self._look = None if finite is None else self._look_at

        self._lock = threading.RLock()  # backward runs in a thread for each device
        self._engine: Engine | None = None
        self._generation = 0
        self._communicator: Communicator | None = None
        self._plan = BucketPlan(self._tracked, self._settings)
        self._step = Step()
        self._preparations = 0  # the number of active `preparing` contexts
        self._failures = 0  # the number of failed steps that this rank has reported
        self._has_changed = False  # whether the parameters have changed since the last step
        self._has_reduced = False  # whether the present engine has reduced a step
        self._superseded: str | None = None  # a parameter that a newer reducer has taken over

        self._enter()
        self._tracked.update()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The parameters whose gradients are reduced."""
        return tuple(self._tracked.entries)

    @property
    def buckets(self) -> tuple[Bucket[Any], ...]:
        """The buckets of the present plan."""
        return tuple(self._plan.buckets)

    @property
    def handles(self) -> dict[torch.Tensor, Handle[Any]]:
        """The handles of the operations in flight, by parameter."""
        return {entry.parameter: handle for bucket, handle in self._step.handles.items() for entry in bucket.entries}

    def completes_bucket(self, entry: Entry) -> bool:
        """Whether the gradient of `entry` is the last missing one of its bucket."""
        bucket = entry.bucket
        return bucket is not None and len(self._step.open_contents(bucket).local) == len(bucket.entries) - 1

    @property
    def has_others(self) -> bool:
        """Whether other ranks take part."""
        return self._communicator is not None

    @property
    def has_local_gradients(self) -> bool:
        """Whether a backward pass has run since the gradients were reduced or discarded."""
        return self._step.has_begun

    @property
    def is_reduced(self) -> bool:
        """Whether this rank's gradients are the results of `synchronize()`: no pass has run since, and none is cleared.

        A gradient that the program has replaced since, such as a clipped one, counts as a result.
        """
        is_between = self._step.follows_reduced and not self._step.has_begun
        return is_between and not any(
            entry.parameter.requires_grad and entry.parameter.grad is None for entry in self._tracked.entries
        )

    @property
    def plan_inputs(self) -> PlanInputs:
        """The inputs of the bucket plan. Two jobs sum in the same order only where these are the same."""
        return self._plan.inputs

    def resume(self, inputs: PlanInputs) -> None:
        """Continue with the inputs of another job, so that sums have the same order. Call it on all ranks."""
        self.discard()
        with self._lock:
            if not self._tracked.entries:
                self._tracked.update()  # MXNet's gradients are not known before the first step
            self._plan.resume(inputs)

    def are_all_reduced(self) -> bool:
        """Whether `is_reduced` holds on all ranks. A collective: a backward pass may have run on one rank only.

        Raises:
            HorovodInternalError: the operation failed.
        """
        with self._lock:
            self._enter()
        if not self._has_reduced:
            return False  # new ranks would not take part
        others = torch.tensor([not self.is_reduced], dtype=torch.float32, device="cpu")
        return not self.average(others, part="others").item()

    def synchronize(self) -> None:
        """Wait until every parameter's gradient is the reduced one. A rank alone in its set returns immediately.

        Raises:
            SupersededError: a newer reducer has one of the parameters.
            HorovodInternalError: a reduction failed, or the ranks have different gradients; the gradients are then
                undefined.
        """
        with self._lock, torch.no_grad():
            step = self._step
            is_asked = self._plan.is_overlapped and step.has_ready
            if is_asked and all(entry.parameter.grad is None for entry in step.list_ready()):
                self.discard()  # the program has cleared the gradients that were taken during backward
            while (comm := self._enter()) is not None:
                try:
                    self._reduce(comm)
                except StepRevokedError:
                    continue  # with the surviving ranks and the kept gradients
                self._step.follows_reduced = self._has_reduced = True
                return
            if self._finite is not None:
                if self._superseded is None:
                    self._has_changed |= self._tracked.update()
                self._finite.look_alone(self._tracked.entries, self._get_engine().rank)
            self._end_step()
            complete_step_alone(self._get_engine(), self._find_set)

    def settle(self, scale: Scale = None) -> None:
        """Report which of the ranks' own gradients were not finite, before the optimizer uses the results.

        Args:
            scale: see `FiniteCheck.settle`.

        Raises:
            NotFiniteError: one was not finite, and the user wants an error.
        """
        if self._finite is not None:
            self._finite.settle(scale)

    def discard(self) -> None:
        """Discard the gradients of this step; their values are undefined afterwards.

        If gradients are complete, all ranks must call this: submitted operations are completed.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        with self._lock, torch.no_grad():
            # The operations of a closed engine ended with it. The new engine is entered only with gradients: reducers
            # are matched by the order in which they enter, and new ranks' reducers have nothing to discard.
            is_over = self._get_engine() is not self._engine
            comm = None
            if not is_over:
                comm = self._enter()

            if comm is not None and self._step.has_ready:
                is_of_all = True
                if self._plan.is_overlapped:
                    try:
                        with self._completing(comm):
                            is_of_all = self._complete(comm, takes=False)
                            if self._finite is not None:
                                self._finite.drop(comm)
                    except StepRevokedError:
                        self._enter()
                if is_of_all:
                    self._plan.note_discard()
            if self._finite is not None:
                self._finite.withdraw()
            self._end_step()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """A context in which gradients are computed for `synchronize`: its error makes the other ranks' step fail too.

        The lock is not held: backward may record gradients from other threads.
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
                # A failure since then is already reported.
                if self._communicator is not None and self._failures == failures:
                    self._fail(self._communicator, error)
            raise
        finally:
            with self._lock:
                self._preparations -= 1

    def average(self, value: torch.Tensor, note: str = "", part: str = "loss") -> torch.Tensor:
        """Combine a value, such as the loss, over the ranks as the gradients are: a sum, or an average.

        Args:
            value: this rank's value.
            note: a description that must be the same on all ranks.
            part: the last part of the operation's name.

        Raises:
            HorovodInternalError: the operation failed, or the ranks' notes differ.
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
                operation.request = operation.request.add_note(note)
            except BaseException as error:
                comm.fail_others(part, error)
                raise
            return comm.engine.run(operation)[0]

    def supersede(self, name: str) -> None:
        """See `Recorder`. Submitted operations are completed.

        Raises:
            UnfinishedStepError: gradients are being averaged, and would be lost.
        """
        with self._lock, torch.no_grad():
            if self._superseded is None:
                for entry in self._tracked.entries:
                    gradient = entry.parameter.grad
                    if gradient is not None and gradient is self._step.find_local(entry) and gradient.count_nonzero():
                        raise UnfinishedStepError(entry.name)
                with suppress(HorovodInternalError):  # the new optimizer reports a failure of the job
                    self.discard()
                self._superseded = name
                self._tracked.detach()
                self._plan.begin_warm_up()

    def record_gradient(self, entry: Entry) -> None:
        """Handle that a backward pass has accumulated into the gradient of `entry`.

        Raises:
            ExcessBackwardError: there were more passes than `passes`.
        """
        step, bucket = self._step, entry.bucket
        gradients = None
        if bucket is not None:
            gradients = step.open.get(bucket)
        if bucket is None or gradients is None or entry in gradients or self.passes > 1:
            self._record(entry)
            return
        if bucket.is_on_cuda:
            bucket.note_stream(step.contents[bucket])
        gradients[entry] = entry.parameter.grad  # the common case, which needs no lock
        latest = step.latest
        if len(gradients) == len(bucket.entries) or (latest is not None and latest.release is None):
            self._advance(step, bucket)

    def _record(self, entry: Entry) -> None:
        """The general case of `record_gradient`."""
        with self._lock:
            comm = self._enter()
            if comm is None:
                return
            if not self._step.has_begun:
                self._begin(comm)
            bucket = entry.bucket
            if entry in self._step.ready or (bucket is not None and entry in self._step.open_contents(bucket).local):
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
            contents = step.open_contents(bucket)
            if bucket.is_on_cuda:
                bucket.note_stream(contents)
            if bucket.copies_each:
                with torch.no_grad():
                    bucket.copy_in(contents, entry)
            else:
                contents.local[entry] = entry.parameter.grad
                if is_single:
                    step.open[bucket] = contents.local
            self._advance(step, bucket)

    def _advance(self, step: Step, bucket: Bucket[Any]) -> None:
        """After a gradient of a bucket: submit the bucket if it is full, else run released operations."""
        with self._lock:
            comm = self._enter()
            if comm is None or self._step is not step:
                return
            is_last = bucket is self._plan.buckets[-1]
            contents = step.contents[bucket]
            is_full = len(contents.local) == len(bucket.entries) and contents.handle is None
            if is_full and not (is_last and self._preparations):
                bucket.take(contents)
                with suppress(StepRevokedError):  # the next call enters the new generation
                    # For the last bucket the step is near, so the background thread need not wake.
                    bucket.submit(comm, contents, at_once=True, is_awaited=is_last, look=self._look)
                step.latest = contents.handle
            elif step.latest is not None and step.latest.release is None:
                comm.engine.progress()

    def _enter(self) -> Communicator | None:
        """Enter the present generation, and return its communicator; None if no other rank takes part.

        With a new engine all state is new. If the same engine has continued without lost ranks, the step continues
        too: its local gradients are submitted again.
        """
        engine = self._get_engine()
        if engine is not self._engine:
            self._engine, self._generation = engine, engine.generation
            self._communicator = Communicator.create(engine, self._find_set(), self._label)
            self._has_reduced = False
            self._end_step()
            if self._check is not None:
                self._check.begin()
            self._plan.begin_warm_up()
        elif self._generation != engine.generation:
            self._generation = engine.generation
            if self._communicator is not None:
                self._communicator = self._communicator.rebind()
            self._step = self._step.restart()
            for check in self._checks:
                check.withdraw()
            self._plan.begin_warm_up()

        return self._communicator

    def _reduce(self, comm: Communicator) -> None:
        """Complete the step; see `synchronize`."""
        was_overlapped = self._plan.is_overlapped
        negotiation = None
        self._adapt(comm)

        with self._completing(comm):
            if self._superseded is None:
                self._has_changed |= self._tracked.update()
            self._refuse_superseded()
            if self._check is not None:
                self._check.ask(comm)
            if not was_overlapped:
                negotiation = self._plan.negotiate(comm, self._step)
            elif self._has_changed:
                self._plan.extend(comm, self._step)

            self._complete(comm)
            for check in self._checks:
                check.finish(comm)
            step = self._step
            indices = (-1 if handle.release is None else handle.release.index for handle in step.handles.values())
            comm.complete_step(max(indices, default=-1))  # until then the local gradients may be needed again
            for check in self._checks:
                check.count_step()
            for bucket in self._plan.buckets:
                bucket.install(step.contents[bucket])

        has_changed = self._has_changed
        self._has_changed = False
        self._end_step()
        self._idle_gpu.count_step(is_first=comm.is_first)
        self._plan.count_step(comm, negotiation, has_changed=has_changed)

    def _refuse_superseded(self) -> None:
        if self._superseded is not None:
            self._tracked.detach()
            raise SupersededError(self._superseded)

    def _begin(self, comm: Communicator) -> None:
        """Begin a step with its first gradient; only once for each step, since this checks all parameters."""
        self._step.has_begun = True
        self._adapt(comm)

    def _adapt(self, comm: Communicator) -> None:
        """Plan again if parameters have other forms than in the plan.

        All ranks do this before they submit an operation of the step; an error names ranks that differ. If a program
        changes a form later, its gradients get the new form, and the next step plans again.
        """
        if self._is_in_use() or not self._tracked.update_forms() or not self._plan.is_overlapped:
            return
        self._plan.adapt(comm)

    def _is_in_use(self) -> bool:
        """Whether the plan is in use: buckets have gradients or were submitted."""
        return (self._plan.is_overlapped and self._step.has_ready) or bool(self._step.handles)

    @contextmanager
    def _completing(self, comm: Communicator) -> Iterator[None]:
        """A context that submits and awaits the operations of a step: its error makes the other ranks' step fail."""
        try:
            yield
        except StepRevokedError:
            raise  # not a failure: the step runs again
        except BaseException as error:
            self._fail(comm, error)
            raise

    def _fail(self, comm: Communicator, error: BaseException) -> None:
        """End a failed step, and make the other ranks' step fail."""
        self._failures += 1
        # After a deadlock nothing is pending on any rank.
        if not isinstance(error, DeadlockError):
            self._fail_unsubmitted(comm, error)
        # An interrupt does not wait.
        if isinstance(error, Exception):
            for handle in self._step.handles.values():
                with suppress(Exception):  # the first failure is reported
                    comm.engine.wait(handle)  # so that no operation writes to gradients afterwards
        for check in self._checks:
            check.withdraw()
        self._plan.begin_warm_up()
        self._end_step()

    def _fail_unsubmitted(self, comm: Communicator, error: BaseException) -> None:
        """Send FAIL for all operations of this step that this rank has not submitted."""
        if self._check is not None:
            self._check.fail_others(comm, error)

        must_negotiate = not self._plan.is_overlapped
        if self._plan.is_overlapped and self._superseded is None:
            with suppress(Exception):  # the first failure is reported
                self._adapt(comm)
                self._tracked.update()
                must_negotiate = bool(self._plan.list_new())

        if must_negotiate and self._step.asked is None:
            comm.fail_others(PLAN, error)
        if self._plan.is_overlapped or self._step.has_negotiated:
            if self._finite is not None:
                self._finite.fail_others(comm, error)
            submitted = self._step.handles
            for bucket in self._plan.buckets:
                if bucket not in submitted:
                    comm.fail_others(bucket.part, error)

    def _complete(self, comm: Communicator, *, takes: bool = True) -> bool:
        """Submit all buckets, full or not, and wait for them; return whether no rank had joined.

        Args:
            comm: the communicator.
            takes: take the missing gradients; False where the step is discarded and their values do not matter.
        """
        if takes:
            for bucket in self._plan.buckets:
                bucket.refuse_changes(self._step.open_contents(bucket))

        last = self._submit_rest(comm, takes=takes)
        if last is None:
            return True
        if self._finite is not None:
            self._finite.ask(comm, self._tracked.entries)
        comm.engine.await_response(last)  # first: this sends its request now, so that it runs beside the others

        failures = []
        for bucket in self._plan.buckets:
            try:
                bucket.finish(comm, self._step.contents[bucket])
            except HorovodInternalError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return last.release is None or not last.release.joined

    def _look_at(self, bucket: Bucket[Any], contents: Contents[Any]) -> None:
        """Examine a bucket's gradients before it is submitted; with the last bucket submit the findings.

        Their request then goes out together with the bucket's.
        """
        if self._finite is None or self._communicator is None:
            return
        self._finite.look(bucket, contents)
        if len(self._step.handles) == len(self._plan.buckets) - 1:
            self._finite.ask(self._communicator, self._tracked.entries)

    def _submit_rest(self, comm: Communicator, *, takes: bool) -> Handle[Any] | None:
        """Submit the buckets that were not submitted during backward; return the handle of the last one."""
        last = None
        for bucket in self._plan.buckets:
            contents = self._step.open_contents(bucket)
            if contents.handle is None:
                if takes:
                    bucket.take(contents)
                bucket.submit(
                    comm, contents, is_awaited=bucket is self._plan.buckets[-1], look=self._look if takes else None
                )
            last = contents.handle
        return last

    def _restart(self, entry: Entry) -> None:
        """Handle a second gradient of a complete entry: an error, unless the program has discarded the first one."""
        gradient = entry.parameter.grad
        if entry.bucket is None:
            # Autograd adds to a gradient in place, which increments its version; a new gradient starts at 0.
            is_new = gradient is None or gradient._version <= self._step.ready[entry]  # noqa: SLF001 - torch has no public way
        else:
            is_new = gradient is not self._step.find_local(entry)
        if not is_new:
            raise ExcessBackwardError(entry.name, self.passes)
        self.discard()
        if self._communicator is not None:
            self._begin(self._communicator)

    def _end_step(self) -> None:
        """Drop the state of this step."""
        self._step = Step()
