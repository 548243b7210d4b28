"""Gradient averaging: buckets are asked for while backward is still computing, and awaited before the optimizer steps.

Each bucket is one operation, asked for as soon as its gradients are complete on this rank; the sequencer finds the
order. A parameter that got no gradient here counts as zeros, since another rank may have one for it.

**Cautious and eager.** In its first steps an optimizer is cautious: nothing is asked for before `synchronize()`, and a
survey of the ranks comes first. It tells which gradients are sparse and in which order they became ready; the buckets
are planned anew, and from then on the optimizer is eager.

**Gradients that are thrown away** (`zero_grad()` after a backward pass of another loss, as for a GAN's discriminator)
cost nothing while the optimizer is cautious. An eager one has asked for some of them, perhaps for others on other
ranks: they are completed on all ranks, and the optimizer is cautious for a while, so that in a GAN what is thrown away
every time is soon not sent at all. The last bucket is never asked for during backward: it carries whether the step is
used or thrown away, so ranks that do not agree on it (on one nothing was ready, and it did not notice) are told so,
and never get a mixture.

**Help.** A rank may come to its step later than another that waits for it there, while it waits itself for an operation
that the other comes to after its step. When all ranks wait so, a reducer whose gradients are complete asks ahead what
`synchronize()` would ask, the last bucket with what the others say of it: that is a promise. It is kept when the
program comes to the step; if it throws away then what the others have used, or the other way round, all are told.
(Not in jobs that outlive their workers: there nobody leaves a step before all have come to it.)

Long because one step is one story, and what is asked ahead is a part of it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.coordination.mentions import Mention
from worker_runtime.engine.executor import Executor
from worker_runtime.engine.handles import Handle
from worker_runtime.errors import (
    ExcessBackwardError,
    OperationRefusedError,
    StepRevokedError,
    SupersededError,
    UnfinishedStepError,
)
from worker_runtime.reduction.bucket import THROWN_AWAY, Bucket
from worker_runtime.reduction.entry import Entry
from worker_runtime.reduction.plan import describe, make_buckets
from worker_runtime.reduction.replicas import ReplicaCheck
from worker_runtime.reduction.roster import NamedParameters, Roster
from worker_runtime.reduction.seat import Seat, commit_alone
from worker_runtime.reduction.settings import Settings
from worker_runtime.reduction.survey import AskedSurvey, Survey, ask_survey

# For how many steps an optimizer stays cautious after gradients were thrown away: one that does so regularly for good.
_CAUTION_STEPS = 100

Course = tuple[int, tuple[int, ...] | None]  # for how many steps nothing was thrown away, and the order of readiness


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters over the ranks of a process set, once per step.

    Args:
        list_parameters: those of the optimizer, named, in the same order on all ranks. Asked anew for each step: those
            that are added or unfrozen are reduced from then on.
        get_executor: the executor of the present generation; asked for anew at each use.
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
        get_executor: Callable[[], Executor],
        settings: Settings | None = None,
        *,
        passes: int = 1,
        groups: Mapping[torch.Tensor, int] | None = None,
        find_set: Callable[[], int] = lambda: 0,
        label: str = "",
        check: ReplicaCheck | None = None,
    ) -> None:
        self._get_executor = get_executor
        self._settings = settings or Settings()
        self._passes = passes
        self._roster = Roster(list_parameters, {} if groups is None else groups, self)
        self._find_set = find_set
        self._label = label
        self._check = check
        self._lock = threading.RLock()  # backward runs in a thread for each device
        self._executor: Executor | None = None
        self._generation = 0
        self._seat: Seat | None = None
        self._buckets: list[Bucket] = []
        self._planned: object = None  # what the buckets of a cautious step were planned from
        self._sparse_dims: dict[Entry, int] = {}  # other than none, with which an eager step's buckets were planned
        self._ready: list[Entry] = []  # of this step, in the order of readiness
        self._is_eager = False
        self._calm = 0
        self._order: tuple[int, ...] | None = None  # in which gradients become ready, once that is known
        self._latest: Handle[Any] | None = None  # of this step's buckets, the one that was asked for last
        self._asked: AskedSurvey | None = None  # one that was not read yet
        self._survey: Survey | None = None  # of this step
        self._promise: str | None = None  # the remark with which the last bucket was asked for ahead
        self._has_begun = False  # the step has: a backward pass has reached one of the parameters
        self._has_changed = False  # the parameters have, since the last step
        self._is_busy = False  # the step is being completed
        self._is_reduced = False  # the step that came last was, and no other has begun
        self._has_reduced = False  # some step, with the present executor
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
        return self._is_reduced and not any(
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
            self._enter_step()
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
            if self._is_eager and self._ready and all(entry.parameter.grad is None for entry in self._ready):
                self.discard()  # what was taken during backward the program has thrown away, and made nothing since
            while (seat := self._enter_step()) is not None:
                try:
                    self._reduce(seat)
                except StepRevokedError:
                    continue  # with those that are left, from the gradients that were kept
                self._is_reduced = self._has_reduced = True
                return
            self._end_step()
            commit_alone(self._get_executor(), self._find_set)

    def discard(self) -> None:
        """Throw away what this step's backward passes have made; the gradients are undefined then.

        Where gradients are complete, all ranks must come here: what was asked for is completed.

        Raises:
            HorovodInternalError: a reduction failed, or another rank uses the gradients that this one throws away.
        """
        with self._lock, torch.no_grad():
            # What an executor that has gone was asked for has ended with it. The place in the next one is taken when
            # gradients are there: reducers find each other by the order in which they come, and only those that were
            # there before have something to throw away, or a state to restore.
            is_over = self._get_executor() is not self._executor
            seat = None if is_over else self._enter_step()
            if seat is not None and self._ready:
                if self._is_eager or self._promise is not None:
                    try:
                        with self._completing(seat):
                            self._keep_promise(seat, THROWN_AWAY)
                            is_of_all = self._complete(seat, remark=THROWN_AWAY)
                    except StepRevokedError:
                        self._enter()
                        is_of_all = True
                    if is_of_all:
                        self._become_cautious(-_CAUTION_STEPS)
                else:
                    self._calm = -_CAUTION_STEPS
            self._end_step()

    def help(self, mention: Mention) -> bool:
        """All ranks wait, some of them for a step of this one; see `Helper`."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            seat = self._seat
            if seat is None or self._is_busy or seat.is_elastic or not seat.is_meant(mention):
                return True
            with torch.no_grad():
                return self._ask_ahead(seat, THROWN_AWAY if mention.text.startswith(THROWN_AWAY) else "")
        except Exception:  # noqa: BLE001 - it comes again where it belongs, when the program comes to its step
            return True
        finally:
            self._lock.release()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While a step's gradients are made for `synchronize`: if that fails, the other ranks' step does, too.

        The lock is not held meanwhile: backward may record gradients from threads of its own.
        """
        with self._lock:
            seat = self._enter_step()
        try:
            if seat is not None:
                self._refuse_superseded()
            yield
        except StepRevokedError:
            raise
        except BaseException as error:
            with self._lock, torch.no_grad():
                present = self._seat
                if seat is not None and present is not None and present.name == seat.name:  # else it is told already
                    self._fail(present, error)
            raise

    def average(self, value: torch.Tensor, note: str = "", part: str = "loss") -> torch.Tensor:
        """A value of this rank's combined with those of the others as gradients are: the loss that belongs to them.

        With a note, all ranks must have the same, and are told of it where they have not; `part` is what they call it.
        """
        with self._lock, torch.no_grad():
            seat = self._enter_step()
            if seat is None:
                return value.detach()
            reduction = self._settings.how.reduction
            how = Combination(Reduction.SUM if reduction is Reduction.SUM else Reduction.AVERAGE)
            operation = Allreduce([value.detach()], how, seat.members, f"allreduce.{seat.name}.{part}")
            operation.question = operation.question.add_note(note)
            with self._completing(seat):
                return seat.executor.run(operation)[0]

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step: for parameters that have made none in this step, at once."""
        with self._lock:
            for entry in self._roster.entries:
                if entry.passes_left == self._passes:
                    entry.passes_left = passes
            self._passes = passes

    def supersede(self, name: str) -> None:
        """See `Recorder`. What is under way is withdrawn.

        Raises:
            UnfinishedStepError: there are gradients under way, which would be lost.
        """
        with self._lock, torch.no_grad():
            if self._superseded is None:
                for entry in self._roster.entries:
                    gradient = entry.parameter.grad
                    if entry.kept is not None and gradient is entry.kept and gradient.count_nonzero():
                        raise UnfinishedStepError(entry.name)
                self._superseded = name
                self._roster.detach()
                if self._seat is not None:
                    self._withdraw(self._seat, f"a newer optimizer has {name}")
                self._become_cautious(0)
                self._end_step()

    def record_gradient(self, entry: Entry) -> None:
        """A backward pass has accumulated into the gradient of `entry`.

        Raises:
            ExcessBackwardError: there were more passes than one step has.
        """
        with self._lock:
            seat = self._enter() if self._ready else self._enter_step()
            if seat is None:
                return
            if not self._has_begun:
                self._begin(seat)
            if entry.is_ready:
                self._restart(entry)
            entry.passes_left -= 1
            if not entry.is_ready:
                return
            self._ready.append(entry)
            bucket = entry.bucket
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
            if not bucket.missing and bucket is not self._buckets[-1]:
                with suppress(StepRevokedError):  # whoever comes next enters the new generation
                    bucket.ask(seat, at_once=True)
                self._latest = bucket.handle
            elif self._latest is not None and self._latest.terms is None:
                seat.executor.progress()

    def _enter(self) -> Seat | None:
        """The place in the present generation.

        With a new executor everything begins anew. Where the same one has gone on without ranks that were lost, the
        step goes on too: with the local gradients, of which all are asked for again.
        """
        executor = self._get_executor()
        if executor is not self._executor:
            self._executor, self._generation = executor, executor.generation
            self._seat = Seat.take(executor, self._find_set(), self._label)
            executor.accord.add_helper(self)
            self._has_reduced = False
            self._end_step()
            if self._check is not None:
                self._check.begin()
            self._become_cautious(0)
        elif self._generation != executor.generation:
            self._generation = executor.generation
            self._seat = None if self._seat is None else self._seat.move()
            for bucket in self._buckets:
                bucket.take_back()
                bucket.reset()
            self._latest = self._asked = self._survey = self._promise = None
            if self._check is not None:
                self._check.withdraw()
            self._become_cautious(0)
        return self._seat

    def _reduce(self, seat: Seat) -> None:
        """Complete the step; see `synchronize`."""
        was_eager = self._is_eager
        self._adapt(seat)
        with self._completing(seat):
            if self._superseded is None:
                self._keep_promise(seat, "")
                self._has_changed |= self._roster.update(self._passes)
            self._refuse_superseded()
            if self._check is not None:
                self._check.ask(seat)
            if not was_eager:
                self._explore(seat)
            elif self._has_changed:
                self._extend(seat)
            self._complete(seat)
            if self._check is not None:
                self._check.finish()
            for bucket in self._buckets:
                bucket.give()
            seat.commit(max((bucket.index for bucket in self._buckets), default=-1))
        has_changed, survey = self._has_changed, self._survey
        self._has_changed = False
        self._end_step()
        self._calm += 1
        if has_changed:
            self._become_cautious(0)
        elif survey is not None and survey.is_of_all and survey.calm > 0:
            self._become_eager(seat, survey)

    def _refuse_superseded(self) -> None:
        if self._superseded is not None:
            self._roster.detach()
            raise SupersededError(self._superseded)

    def _enter_step(self) -> Seat | None:
        """As `_enter`; where all ranks have begun anew, under another name as soon as no step is under way."""
        seat = self._enter()
        if seat is not None and seat.is_outdated and not self._is_under_way():
            self._renew(seat, "the ranks were out of step, and have begun anew")
        return self._seat

    def _begin(self, seat: Seat) -> None:
        """The first gradient of a step is there; once for each step, since it looks at all parameters."""
        self._has_begun, self._is_reduced = True, False
        self._adapt(seat)

    def _adapt(self, seat: Seat) -> None:
        """Where parameters have another form than when the buckets were planned, plan anew.

        All ranks do so before they ask for anything of the step; those that have not the same are told. A program that
        changes a form later finds its gradients in the new form, and is heard in the next step.
        """
        if self._is_under_way() or not self._roster.update_forms() or not self._is_eager:
            return
        entries = [entry for bucket in self._buckets for entry in bucket.entries]
        dims = [self._sparse_dims.get(entry, 0) for entry in entries]
        self._plan_eagerly(make_buckets(entries, self._settings, seat, sparse_dims=dims, order=range(len(entries))))

    def _is_under_way(self) -> bool:
        """Whether gradients were asked for, or have been brought where they travel."""
        return (self._is_eager and bool(self._ready)) or any(bucket.handle is not None for bucket in self._buckets)

    @contextmanager
    def _completing(self, seat: Seat) -> Iterator[None]:
        """While all that belongs to the step is asked for and awaited."""
        self._is_busy = True
        try:
            yield
        except StepRevokedError:
            raise  # nothing has failed: the step is run again
        except BaseException as error:
            self._fail(seat, error)
            raise
        finally:
            self._is_busy = False

    def _fail(self, seat: Seat, error: BaseException) -> None:
        """The step has failed here: the others are told."""
        reason = f"{type(error).__name__}: {error}"
        if self._is_eager and self._superseded is None:
            with suppress(Exception):  # the failure that was first is told
                self._roster.update(self._passes)
                self._extend(seat)  # the others ask for parameters that are new as well
        if isinstance(error, Exception):  # else whoever interrupts the program is not to wait
            self._withdraw(seat, reason)
        self._give_up(seat, reason)

    def _ask_ahead(self, seat: Seat, remark: str) -> bool:
        """Ask what the step would ask, if its gradients are there, without waiting; whether that is all."""
        self._has_changed |= self._roster.update(self._passes)
        entries = self._roster.entries
        if self._promise is not None or not entries or not all(entry.is_ready for entry in entries):
            return True
        if self._check is not None:
            self._check.ask(seat)
        if not self._is_eager:
            if self._asked is None and self._survey is None:
                self._asked = self._ask_survey(seat, is_awaited=False)
            if self._asked is not None and not self._asked.is_done():
                return False
            self._explore(seat)
        elif self._has_changed:
            self._extend(seat)
        self._promise = remark
        self._ask_rest(seat, remark, at_once=True)
        return True

    def _keep_promise(self, seat: Seat, remark: str) -> None:
        """Make sure that the step ends as the others were told.

        Raises:
            OperationRefusedError: it does not; they are told in their next step.
        """
        promise = self._promise
        if promise is None or promise == remark:
            return
        here, there = ("used", THROWN_AWAY) if promise else (THROWN_AWAY, "used")
        text = (
            f"gradients were {here} on rank {seat.members.rank}, and {there} on the others, where the step came before "
            "an operation that came first here; all ranks must step, or throw away, the same"
        )
        for bucket in self._buckets:
            seat.give_up(bucket.part, text)
        raise OperationRefusedError(f"{seat.name}: {text}")

    def _ask_survey(self, seat: Seat, *, is_awaited: bool) -> AskedSurvey:
        entries = self._roster.entries
        note = f"{self._settings.describe()}, {describe(entries)}"
        return ask_survey(seat, entries, self._ready, self._calm, note, is_awaited=is_awaited)

    def _explore(self, seat: Seat) -> None:
        """In a cautious step: find out what all have, and plan accordingly."""
        survey = self._survey
        if survey is None:
            asked = self._asked = self._asked or self._ask_survey(seat, is_awaited=True)
            survey = asked.read()
            if asked.entries != tuple(self._roster.entries):  # asked ahead, in a step that was thrown away
                survey = self._ask_survey(seat, is_awaited=True).read()
            self._asked, self._survey = None, survey
        entries = tuple(self._roster.entries)
        planned = (seat, entries, tuple(entry.form for entry in entries), survey.sparse_dims)
        if planned != self._planned:
            dims = survey.sparse_dims
            self._buckets = make_buckets(entries, self._settings, seat, sparse_dims=dims, order=self._order)
            self._planned = planned

    def _extend(self, seat: Seat) -> None:
        """In an eager step: let parameters that are new travel, too."""
        new = [entry for entry in self._roster.entries if entry.bucket is None]
        if new:
            self._buckets += make_buckets(new, self._settings, seat, first_number=len(self._buckets))

    def _complete(self, seat: Seat, remark: str = "") -> bool:
        """Ask for all buckets, whether they are full or not, and wait; whether no rank had joined at the last one.

        With a remark, the gradients that were not taken do not matter, and are left alone.
        """
        for bucket in () if remark else self._buckets:
            bucket.refuse_changes()
        self._ask_rest(seat, remark)
        terms = None
        if self._buckets and (last := self._buckets[-1].handle) is not None:
            last.await_answer()  # before any data: its question leaves now, and it runs beside the others
            if last.terms is None:
                last.wait()  # raises: it was refused, and others may have asked for nothing else
        for bucket in self._buckets:
            terms = bucket.finish()
        return terms is None or not terms.joined

    def _ask_rest(self, seat: Seat, remark: str, *, at_once: bool = False) -> None:
        """Ask for the buckets that were not asked for; the last one is waited for, unless they are sent at once."""
        for bucket in self._buckets:
            if bucket.handle is None:
                for entry in bucket.entries:
                    if not remark and (entry.bucket is None or not entry.is_ready):
                        bucket.take(entry)
                is_last = bucket is self._buckets[-1]
                is_awaited = is_last and not at_once
                bucket.ask(seat, at_once=at_once, is_awaited=is_awaited, remark=remark if is_last else "")

    def _restart(self, entry: Entry) -> None:
        """A gradient was complete, and backward has made another: all is well if the first one was thrown away."""
        gradient = entry.parameter.grad
        if entry.bucket is None and self._promise is None:
            # Autograd adds to a gradient in place, so that its version grows; that of a new one begins at 0.
            is_new = gradient is None or gradient._version <= entry.version  # noqa: SLF001 - as above
        else:
            is_new = gradient is not entry.kept
        if not is_new:
            raise ExcessBackwardError(entry.name, self._passes)
        self.discard()
        if self._seat is not None:
            self._begin(self._seat)

    def _become_eager(self, seat: Seat, survey: Survey) -> None:
        """Ask during backward from now on, in buckets that are complete as early as can be."""
        self._is_eager, self._planned = True, None
        entries, dims = self._roster.entries, survey.sparse_dims
        self._sparse_dims = {entry: number for entry, number in zip(entries, dims, strict=True) if number}
        self._order = self._order or survey.order
        self._plan_eagerly(make_buckets(entries, self._settings, seat, sparse_dims=dims, order=self._order))

    def _plan_eagerly(self, buckets: list[Bucket]) -> None:
        self._buckets = buckets
        for bucket in buckets:
            for entry in bucket.entries:
                entry.bucket = bucket

    def _become_cautious(self, calm: int) -> None:
        self._is_eager, self._calm, self._order = False, calm, None
        self._buckets, self._planned = [], None
        self._sparse_dims = {}
        self._asked = None
        for entry in self._roster.entries:
            entry.bucket = None

    def _withdraw(self, seat: Seat, reason: str) -> None:
        """After a failure: see to the end of what was asked for, so that nothing is written to gradients afterwards."""
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        for handle in handles:
            if handle.terms is None:
                seat.executor.withdraw(handle, reason)
        for handle in handles:
            with suppress(Exception):  # what has failed first is told
                handle.wait()

    def _give_up(self, seat: Seat, reason: str) -> None:
        """After a failure: nothing that was asked for is waited for, and its names and memory are not used again."""
        if self._seat is seat:
            self._renew(seat, reason)
        else:
            self._become_cautious(0)
        self._end_step()

    def _renew(self, seat: Seat, reason: str) -> None:
        """Begin anew under another name; who waits for something under the old one is told that it does not come."""
        if self._check is not None:
            seat.give_up("allreduce.{}.replicas", reason)
            self._check.withdraw()
        for part in ("allreduce.{}.plan", *(bucket.part for bucket in self._buckets if bucket.handle is None)):
            seat.give_up(part, reason)
        if self._asked is not None:
            self._asked.withdraw(seat, reason)
        self._seat = seat.renew()
        self._become_cautious(0)

    def _end_step(self) -> None:
        """The next step begins anew."""
        self._ready.clear()
        self._latest = self._survey = self._promise = None
        self._has_begun = self._is_reduced = False
        for bucket in self._buckets:
            bucket.reset()
        self._roster.begin_step(self._passes)
