"""Gradient averaging: buckets are asked for while backward is still computing, and awaited before the optimizer steps.

Each bucket is one operation, asked for as soon as its gradients are complete on this rank; the sequencer finds the
order. A parameter that got no gradient here counts as zeros, since another rank may have one for it.

**Cautious and eager.** In its first steps an optimizer is cautious: nothing is asked for before `synchronize()`, and a
negotiation of the ranks comes first. It tells which gradients are sparse and in which order they became ready; the
buckets are planned anew, and from then on the optimizer is eager.

**Gradients that are thrown away** (`zero_grad()` after a backward pass of another loss, as for a GAN's discriminator)
cost nothing while the optimizer is cautious. An eager one has asked for some of them, perhaps for others on other
ranks: all its buckets are completed on all ranks, and the optimizer is cautious for a while, so that in a GAN what is
thrown away every time is soon not sent at all. A rank that uses what another throws away asks for its next bucket,
where that one asks for a negotiation: they wait for each other, which all ranks are told.

**Failures.** Every rank asks for each operation of a step once, whatever happens: one whose step fails says FAIL for
what it has not asked for, so that the others' step fails too, and all are in step. Then all are cautious. While the
gradients are made in a closure, the last bucket is held back, so that there is something to fail.

Long because one step is one story.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.coordination.operation import Handle
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import (
    DeadlockError,
    ExcessBackwardError,
    HorovodInternalError,
    StepRevokedError,
    SupersededError,
    UnfinishedStepError,
)
from worker_runtime.reduction.bucket import Bucket, Entry
from worker_runtime.reduction.communicator import Communicator, commit_alone
from worker_runtime.reduction.negotiation import PLAN, Negotiation, ask_negotiation, read_negotiation
from worker_runtime.reduction.plan import describe, make_buckets
from worker_runtime.reduction.replicas import ReplicaCheck
from worker_runtime.reduction.roster import NamedParameters, Roster
from worker_runtime.reduction.settings import Settings

# For how many steps an optimizer stays cautious after gradients were thrown away: one that does so regularly for good.
_CAUTION_STEPS = 100

Course = tuple[int, tuple[int, ...] | None]  # for how many steps nothing was thrown away, and the order of readiness


@dataclass(slots=True)
class Step:
    """How far a step has come; for each there is another one.

    ready: gradients that are complete, in the order of readiness.
    latest: the bucket's that was asked for last, during backward.
    asked: the negotiation of a cautious step, once it was asked for.
    negotiation: that negotiation, once it is known.
    has_begun: a backward pass has reached one of the parameters.
    follows_reduced: the step before it was reduced.
    """

    ready: list[Entry] = field(default_factory=list)
    latest: Handle[Any] | None = None
    asked: Handle[Any] | None = None
    negotiation: Negotiation | None = None
    has_begun: bool = False
    follows_reduced: bool = False


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
        self._passes = passes
        self._roster = Roster(list_parameters, {} if groups is None else groups, self)
        self._find_set = find_set
        self._label = label
        self._check = check
        self._lock = threading.RLock()  # backward runs in a thread for each device
        self._engine: Engine | None = None
        self._generation = 0
        self._communicator: Communicator | None = None
        self._buckets: list[Bucket] = []
        self._planned: object = None  # what the buckets of a cautious step were planned from
        self._sparse_dims: dict[Entry, int] = {}  # other than none, with which an eager step's buckets were planned
        self._step = Step()
        self._is_eager = False
        self._calm = 0
        self._order: tuple[int, ...] | None = None  # in which gradients become ready, once that is known
        self._preparations = 0  # within which gradients are made at present
        self._failures = 0  # steps that have failed here, of which the others were told
        self._has_changed = False  # the parameters have, since the last step
        self._has_reduced = False  # some step, with the present engine
        self._superseded: str | None = None  # a parameter that a newer reducer has
        self._enter()
        self._roster.update(self._passes)

    @property
    def passes(self) -> int:
        """How many backward passes are summed locally before one step."""
        return self._passes

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The parameters whose gradients are reduced, and how far each is."""
        return tuple(self._roster.entries)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """As they are planned at present."""
        return tuple(self._buckets)

    @property
    def is_reduced(self) -> bool:
        """Whether this rank's gradients are what `synchronize()` made: none was added to, or taken away, since then."""
        is_between = self._step.follows_reduced and not self._step.has_begun
        return is_between and not any(
            entry.parameter.requires_grad and entry.parameter.grad is None for entry in self._roster.entries
        )

    @property
    def course(self) -> Course:
        """How gradients travel in the next step: of two jobs, alike only where this is."""
        return self._calm, self._order

    def resume(self, course: Course) -> None:
        """Begin as another job has gone on, so that sums are made in the same order; the same on all ranks."""
        self.discard()
        with self._lock:
            calm, order = course
            is_fitting = order is not None and len(order) == len(self._roster.entries)
            self._become_cautious(calm)
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
            ready = self._step.ready
            if self._is_eager and ready and all(entry.parameter.grad is None for entry in ready):
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
            if comm is not None and self._step.ready:
                if self._is_eager:
                    try:
                        with self._completing(comm):
                            is_of_all = self._complete(comm, takes=False)
                    except StepRevokedError:
                        self._enter()
                        is_of_all = True
                    if is_of_all:
                        self._become_cautious(-_CAUTION_STEPS)
                else:
                    self._calm = -_CAUTION_STEPS
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

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step: for parameters that have made none in this step, at once."""
        with self._lock:
            for entry in self._roster.entries:
                if entry.passes_left == self._passes:
                    entry.passes_left = passes
            self._passes = passes

    def supersede(self, name: str) -> None:
        """See `Recorder`. What is under way is completed.

        Raises:
            UnfinishedStepError: there are gradients under way, which would be lost.
        """
        with self._lock, torch.no_grad():
            if self._superseded is None:
                for entry in self._roster.entries:
                    gradient = entry.parameter.grad
                    if entry.kept is not None and gradient is entry.kept and gradient.count_nonzero():
                        raise UnfinishedStepError(entry.name)
                with suppress(HorovodInternalError):
                    self.discard()
                self._superseded = name
                self._roster.detach()
                self._become_cautious(0)

    def record_gradient(self, entry: Entry) -> None:
        """A backward pass has accumulated into the gradient of `entry`.

        Raises:
            ExcessBackwardError: there were more passes than one step has.
        """
        with self._lock:
            comm = self._enter()
            if comm is None:
                return
            if not self._step.has_begun:
                self._begin(comm)
            if entry.passes_left <= 0:
                self._restart(entry)
            entry.passes_left -= 1
            if entry.passes_left > 0:
                return
            step, bucket = self._step, entry.bucket
            step.ready.append(entry)
            if bucket is None:
                entry.note_version()
                return
            if torch.is_grad_enabled():
                with torch.no_grad():
                    bucket.take(entry)
            else:
                bucket.take(entry)
            entry.note_version()
            bucket.missing -= 1
            is_last = bucket is self._buckets[-1]
            if not (bucket.missing or (is_last and self._preparations)):
                with suppress(StepRevokedError):  # whoever comes next enters the new generation
                    bucket.ask(comm, at_once=True, is_awaited=is_last)  # the step is near, and wakes nobody for it
                step.latest = bucket.handle
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
            self._communicator = Communicator.take(engine, self._find_set(), self._label)
            self._has_reduced = False
            self._end_step()
            if self._check is not None:
                self._check.begin()
            self._become_cautious(0)
        elif self._generation != engine.generation:
            self._generation = engine.generation
            self._communicator = None if self._communicator is None else self._communicator.move()
            for bucket in self._buckets:
                bucket.take_back()
                bucket.reset()
            self._step.latest = self._step.asked = self._step.negotiation = None
            if self._check is not None:
                self._check.withdraw()
            self._become_cautious(0)
        return self._communicator

    def _reduce(self, comm: Communicator) -> None:
        """Complete the step; see `synchronize`."""
        was_eager = self._is_eager
        self._adapt(comm)
        with self._completing(comm):
            if self._superseded is None:
                self._has_changed |= self._roster.update(self._passes)
            self._refuse_superseded()
            if self._check is not None:
                self._check.ask(comm)
            if not was_eager:
                self._explore(comm)
            elif self._has_changed:
                self._extend(comm)
            self._complete(comm)
            if self._check is not None:
                self._check.finish(comm)
            for bucket in self._buckets:
                bucket.give()
            comm.commit(max((bucket.index for bucket in self._buckets), default=-1))
        has_changed, negotiation = self._has_changed, self._step.negotiation
        self._has_changed = False
        self._end_step()
        self._calm += 1
        if has_changed:
            self._become_cautious(0)
        elif negotiation is not None and negotiation.is_of_all and negotiation.calm > 0:
            self._become_eager(comm, negotiation)

    def _refuse_superseded(self) -> None:
        if self._superseded is not None:
            self._roster.detach()
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
        if self._is_under_way() or not self._roster.update_forms() or not self._is_eager:
            return
        entries = [entry for bucket in self._buckets for entry in bucket.entries]
        dims = [self._sparse_dims.get(entry, 0) for entry in entries]
        self._plan_eagerly(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=range(len(entries))))

    def _is_under_way(self) -> bool:
        """Whether gradients were asked for, or have been brought where they travel."""
        return (self._is_eager and bool(self._step.ready)) or any(bucket.handle is not None for bucket in self._buckets)

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
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        for handle in handles if isinstance(error, Exception) else ():  # else whoever interrupts is not to wait
            with suppress(Exception):
                comm.engine.wait(handle)  # so that nothing is written to gradients afterwards
        if self._check is not None:
            self._check.withdraw()
        self._become_cautious(0)
        self._end_step()

    def _tell(self, comm: Communicator, error: BaseException) -> None:
        """Fail all that the others ask for in this step, and this rank has not asked for."""
        if self._check is not None:
            self._check.fail(comm, error)
        if self._is_eager and self._superseded is None:
            with suppress(Exception):  # the failure that was first is told
                self._adapt(comm)
                self._roster.update(self._passes)
                self._extend(comm)  # the others ask for parameters that are new as well
        if not self._is_eager and self._step.asked is None:
            comm.fail(PLAN, error)
        for bucket in self._buckets if self._is_eager or self._step.negotiation is not None else ():
            if bucket.handle is None:
                comm.fail(bucket.part, error)

    def _explore(self, comm: Communicator) -> None:
        """In a cautious step: find out what all have, and plan accordingly."""
        entries = tuple(self._roster.entries)
        note = f"{self._settings.describe()}, {describe(entries)}"
        step = self._step
        step.asked = ask_negotiation(comm, entries, step.ready, self._calm, note)
        step.negotiation = negotiation = read_negotiation(comm, step.asked, len(entries))
        planned = (comm, entries, tuple(entry.form for entry in entries), negotiation.sparse_dims)
        if planned != self._planned:
            dims = negotiation.sparse_dims
            self._buckets = make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order)
            self._planned = planned

    def _extend(self, comm: Communicator) -> None:
        """In an eager step: let parameters that are new travel, too."""
        new = [entry for entry in self._roster.entries if entry.bucket is None]
        if new:
            self._buckets += make_buckets(new, self._settings, comm, first_number=len(self._buckets))

    def _complete(self, comm: Communicator, *, takes: bool = True) -> bool:
        """Ask for all buckets, whether they are full or not, and wait; whether no rank had joined at the last one.

        Args:
            comm: among whom.
            takes: the gradients that were not taken are; else they do not matter, and are left alone.
        """
        for bucket in self._buckets if takes else ():
            bucket.refuse_changes()
        self._ask_rest(comm, takes=takes)
        if not self._buckets:
            return True
        last = self._buckets[-1]
        if last.handle is not None:
            comm.engine.await_answer(
                last.handle
            )  # before any data: its question leaves now, and it runs beside the others
        failures = []
        for bucket in self._buckets:
            try:
                bucket.finish(comm)
            except HorovodInternalError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return last.handle is None or last.handle.terms is None or not last.handle.terms.joined

    def _ask_rest(self, comm: Communicator, *, takes: bool) -> None:
        """Ask for the buckets that were not asked for during backward."""
        for bucket in self._buckets:
            if bucket.handle is None:
                for entry in bucket.entries if takes else ():
                    if entry.bucket is None or not entry.is_ready:
                        bucket.take(entry)
                bucket.ask(comm, is_awaited=bucket is self._buckets[-1])

    def _restart(self, entry: Entry) -> None:
        """A gradient was complete, and backward has made another: all is well if the first one was thrown away."""
        gradient = entry.parameter.grad
        if entry.bucket is None:
            # Autograd adds to a gradient in place, so that its version grows; that of a new one begins at 0.
            is_new = gradient is None or gradient._version <= entry.version  # noqa: SLF001 - as above
        else:
            is_new = gradient is not entry.kept
        if not is_new:
            raise ExcessBackwardError(entry.name, self._passes)
        self.discard()
        if self._communicator is not None:
            self._begin(self._communicator)

    def _become_eager(self, comm: Communicator, negotiation: Negotiation) -> None:
        """Ask during backward from now on, in buckets that are complete as early as can be."""
        self._is_eager, self._planned = True, None
        entries, dims = self._roster.entries, negotiation.sparse_dims
        self._sparse_dims = {entry: number for entry, number in zip(entries, dims, strict=True) if number}
        self._order = self._order or negotiation.order
        self._plan_eagerly(make_buckets(entries, self._settings, comm, sparse_dims=dims, order=self._order))

    def _plan_eagerly(self, buckets: list[Bucket]) -> None:
        self._buckets = buckets
        for bucket in buckets:
            for entry in bucket.entries:
                entry.bucket = bucket

    def _become_cautious(self, calm: int) -> None:
        self._is_eager, self._calm, self._order = False, calm, None
        self._buckets, self._planned = [], None
        self._sparse_dims = {}
        for entry in self._roster.entries:
            entry.bucket = None

    def _end_step(self) -> None:
        """The next step begins anew."""
        self._step = Step()
        for bucket in self._buckets:
            bucket.reset()
        self._roster.begin_step(self._passes)
