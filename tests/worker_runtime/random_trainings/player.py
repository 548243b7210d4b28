"""Plays a random training, as one rank of a world or as the one process that has all ranks' batches."""

import math
import os
import warnings
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.random_trainings.gradients import Gradients
from tests.worker_runtime.random_trainings.local_steps import LocalSteps
from tests.worker_runtime.random_trainings.model import SHAPES, draw_tensor, make_model
from tests.worker_runtime.random_trainings.outcome import (
    ELSEWHERE,
    NO_SKIP,
    SUPERSEDED,
    Outcome,
    RefusedError,
    UserError,
)
from tests.worker_runtime.random_trainings.passes import Passes, fail, give
from tests.worker_runtime.random_trainings.programs import (
    ALL,
    BLOCKS,
    PARAMETERS,
    Backward,
    Clear,
    Closure,
    Freeze,
    Load,
    Operation,
    Program,
    Recover,
    Step,
    Wrap,
    Write,
)
from tests.worker_runtime.random_trainings.recoveries import make_elastic, recover, revoking
from tests.worker_runtime.random_trainings.wrapped import MAKERS, Flat, Wrapped
from worker_runtime.errors import SupersededError


def play(program: Program) -> Outcome:
    """Play it as one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["HVD_CHECK_REPLICAS"] = str(program.check)
        if program.is_elastic:
            make_elastic()
        outcome = Player(program, (hvd.rank(),)).play()
        del os.environ["HVD_CHECK_REPLICAS"]
        hvd.barrier()  # the first end would be what is reported of a failure
        return outcome


def expect(program: Program, refused: Collection[int], followed: Sequence[torch.Tensor]) -> Outcome:
    """Play it as one process with the batches of all ranks.

    Args:
        program: the program.
        refused: the operations that the ranks have refused.
        followed: the parameters with which each next operation begins; none if it continues with its own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Player(program, tuple(range(program.size)), refused, followed).play()


class Player:
    """The model, its optimizers, and which operations make sense at present: the same on each rank."""

    def __init__(
        self,
        program: Program,
        ranks: Sequence[int],
        refused: Collection[int] = (),
        followed: Sequence[torch.Tensor] = (),
    ) -> None:
        self._refused = refused
        self._followed = followed
        self._program = program
        self._ranks = ranks
        self._is_distributed = len(ranks) < program.size
        self.model = make_model(program.widened)
        self._gradients = Gradients(self.model, len(ranks))  # of the one process
        self._passes = Passes(program, ranks, self.model, self._gradients)
        self._wraps: list[Wrapped] = []
        self._scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        self._scaler.scale(torch.zeros(1))  # else it has no scale, and refuses to step
        self._is_clean = True  # no gradient has come since all were averaged or cleared
        self._has_infinity = False  # perhaps, in some gradient
        self._is_uneven = False  # some ranks have gradients that others have not
        self._outcome = Outcome()

    def play(self) -> Outcome:
        """All operations; a failed one is caught, gradients are cleared, and the program continues."""
        for number, operation in enumerate(self._program.operations):
            try:
                if number in self._refused:
                    raise RefusedError
                self._perform(number, operation)
            except (UserError, RuntimeError, ValueError, AssertionError) as error:
                self._outcome.failures[number] = f"{type(error).__name__}: {error}"
                if isinstance(operation, Step | Closure):  # of other failures its optimizer has not heard
                    self._find(operation.optimizer).begin()
                self._scaler._per_optimizer_states.clear()  # a step that failed was not followed by update()
                self._clear()
            flat = torch.nn.utils.parameters_to_vector(self.model[name].detach().double() for name in PARAMETERS)
            self._outcome.parameters.append(flat)
            if self._followed:
                torch.nn.utils.vector_to_parameters(self._followed[number].clone(), self.model.values())
        return self._outcome

    def _perform(self, number: int, operation: Operation) -> None:  # noqa: C901 - a case for each operation
        match operation:
            case Wrap():
                self._wrap(operation)
            case Backward() if self._may_come(
                operation.uses, is_cut_anywhere=operation.fails and operation.way != "eager"
            ):
                self._backward(operation)
            case Clear(optimizer) if optimizer == ALL:
                self._clear()
            case Clear(None, to_none):
                self._clear_model(to_none=to_none)
            case Clear(optimizer, to_none):
                self._even_out()
                wrapped = self._find(optimizer)
                wrapped.optimizer.zero_grad(set_to_none=to_none)
                wrapped.begin()
            case Step():
                self._step(self._find(operation.optimizer), operation)
            case Closure():
                self._outcome.losses[number] = self._step_with_closure(operation)
            case Write(name, batch) if self._is_clean and not any(
                wrapped.has_dropped or wrapped.averaged_by for wrapped in self._wraps
            ):  # what is written after synchronize() counts as averaged
                self._write(name, batch)
            case Freeze(name) if self._is_clean:
                parameter = self.model[name]
                parameter.requires_grad_(not parameter.requires_grad)
                parameter.grad = None
            case Load(optimizer):
                self._load(self._find(optimizer))
            case Recover() if self._is_distributed and self._are_even(None):
                recover()

    def _find(self, number: int) -> Wrapped:
        return self._wraps[number % len(self._wraps)]

    def _wrap(self, wrap: Wrap) -> None:
        if not self._is_clean:
            return
        make = MAKERS[wrap.kind]
        optimizer: Any = make([self.model[name] for name in wrap.parameters])
        if wrap.op == "Adasum" and not self._is_distributed:
            optimizer = LocalSteps(make, self.model, wrap.parameters, self._program.size, self._gradients)
        if self._is_distributed:
            optimizer = hvd.DistributedOptimizer(
                optimizer,
                [(name, self.model[name]) for name in wrap.parameters],
                Flat if wrap.is_compressed else hvd.Compression.none,
                backward_passes_per_step=wrap.passes,
                groups=min(wrap.groups, len(wrap.parameters)) or None,
                op=getattr(hvd, wrap.op),
                gradient_predivide_factor=wrap.predivide if wrap.op == "Average" else 1.0,
            )
        taken = frozenset(name for name in wrap.parameters if self.model[name].requires_grad)
        self._wraps.append(Wrapped(optimizer, wrap, taken))

    def _is_superseded(self, wrapped: Wrapped) -> bool:
        newer = self._wraps[self._wraps.index(wrapped) + 1 :]
        return any(set(wrapped.wrap.parameters) & other.taken for other in newer)

    def _may_come(self, uses: Sequence[frozenset[str]], *, is_cut_anywhere: bool = False) -> bool:
        """Whether another backward pass is not one too many; counts it.

        is_cut_anywhere: it fails where a compiler chose, which may not be the same place on all ranks.
        """
        touched = {name for blocks in uses for block in blocks for name in BLOCKS[block]}
        concerned = [
            wrapped
            for wrapped in self._wraps
            if touched & set(wrapped.wrap.parameters) and not self._is_superseded(wrapped)
        ]
        if any(wrapped.passes >= wrapped.wrap.passes for wrapped in concerned):
            return False
        for wrapped in concerned:
            wrapped.passes += 1
            wrapped.is_uneven |= is_cut_anywhere or len(set(uses)) > 1
            wrapped.averaged_by = ""
        self._is_uneven |= len(set(uses)) > 1
        return True

    def _backward(self, operation: Backward) -> None:
        self._is_clean = False
        self._has_infinity |= operation.is_scaled and operation.infinite is not None

        def finish(rank: int, loss: torch.Tensor) -> torch.Tensor:
            final = loss * torch.inf if rank == operation.infinite and operation.is_scaled else loss
            return self._scaler.scale(final) if operation.is_scaled else final

        self._passes.run(operation.batch, operation.uses, operation.way, finish, fails=operation.fails)
        if operation.fails:
            raise UserError("in backward")

    def _clear(self) -> None:
        """By all optimizers and the model, or by the model alone."""
        self._even_out()
        if not (self._program.clears_by_model and all(wrapped.wrap.passes == 1 for wrapped in self._wraps)):
            for wrapped in self._wraps:
                wrapped.optimizer.zero_grad()
                wrapped.begin()
        self._clear_model(to_none=True)

    def _even_out(self) -> None:
        for wrapped in self._wraps:
            if wrapped.is_uneven:
                if not self._is_superseded(wrapped):
                    with suppress(SupersededError):  # by an optimizer whose parameter was frozen when it was made
                        self._average(wrapped)
                wrapped.begin()

    def _clear_model(self, *, to_none: bool) -> None:
        self._even_out()
        for name, parameter in self.model.items():
            if to_none:
                parameter.grad = None
            elif not self._is_distributed:
                self._gradients.zero(name)
            elif parameter.grad is not None:
                parameter.grad.zero_()
        if to_none:
            for wrapped in self._wraps:
                if wrapped.wrap.passes == 1:
                    wrapped.passes, wrapped.has_dropped = 0, wrapped.has_dropped or wrapped.passes > 0
            self._is_clean, self._has_infinity, self._is_uneven = True, False, False

    def _average(self, wrapped: Wrapped) -> None:
        """What `synchronize()` does, for one process: a parameter without a gradient counts as zeros."""
        if self._is_distributed:
            wrapped.optimizer.synchronize()
        elif not wrapped.is_local:
            self._refuse_superseded(wrapped)
            self._reduce(wrapped)
        wrapped.begin()

    def _refuse_superseded(self, wrapped: Wrapped) -> None:
        if self._is_superseded(wrapped):
            raise RefusedError(SUPERSEDED)

    def _reduce(self, wrapped: Wrapped) -> None:
        for name in wrapped.wrap.parameters:
            if self.model[name].requires_grad:
                self._gradients.reduce(name, wrapped.wrap.op)

    def _step(self, wrapped: Wrapped, step: Step) -> None:
        way = step.way
        if self._has_infinity and "scaler" not in way:
            way = "scaler"
        if wrapped.wrap.kind == "LBFGS" and way != "synchronize":
            return  # LBFGS needs a closure
        if wrapped.is_local and "scaler" in way and (self._is_uneven or self._is_superseded(wrapped)):
            if self._has_infinity:
                return
            way = "plain"  # a scaler refuses a rank without gradients, and the others would wait
        if not any(parameter.requires_grad for parameter in self._parameters(wrapped)):
            return
        is_revoked = self._is_distributed and step.early is not None and self._are_even(wrapped)
        with revoking(is_early=self._ranks[0] in step.early) if is_revoked else nullcontext():
            averaged_by = self._step_in_a_way(wrapped, way, step.recovers)
        wrapped.begin()
        wrapped.averaged_by = averaged_by
        self._is_clean = all(other.passes == 0 for other in self._wraps)

    def _step_in_a_way(self, wrapped: Wrapped, way: str, recovers: str) -> str:
        """Return by what the gradients were averaged, if they are not used."""
        optimizer = wrapped.optimizer
        if isinstance(optimizer, LocalSteps):
            if way == "synchronize and skip":
                raise RefusedError(NO_SKIP)
            if way != "synchronize":  # which does nothing
                self._refuse_superseded(wrapped)
                optimizer.step_in_a_way(way, self._scaler)
            return ""
        if way.startswith("synchronize"):
            return self._synchronize_and_step(wrapped, way, recovers)
        if "scaler" in way:
            return self._step_with_scaler(wrapped, way, recovers)
        if not self._is_distributed:
            self._refuse_superseded(wrapped)
            self._reduce(wrapped)
        hook = optimizer.register_step_pre_hook(fail) if way == "fails" else None
        try:
            optimizer.step()
        finally:
            if hook is not None:
                hook.remove()
        return ""

    def _step_with_scaler(self, wrapped: Wrapped, way: str, recovers: str) -> str:
        optimizer = wrapped.optimizer
        is_second = wrapped.averaged_by == "synchronize()" and not any(
            parameter.requires_grad and parameter.grad is None for parameter in self._parameters(wrapped)
        )
        if not self._is_distributed:
            self._refuse_superseded(wrapped)
            if not is_second:
                self._reduce(wrapped)
        if way == "clip and scaler" or (is_second and not self._is_distributed):
            self._scaler.unscale_(optimizer)
            self._arrive(wrapped, "unscaled", recovers)
        if way == "clip and scaler":
            torch.nn.utils.clip_grad_norm_(self._parameters(wrapped), 0.5)
            self._arrive(wrapped, "clipped", recovers)
        if is_second and not self._is_distributed:
            self._reduce(wrapped)  # by the step itself, as in Horovod
        self._scaler.step(optimizer)
        scale = self._scaler.get_scale()
        self._scaler.update()
        is_skipped = self._scaler.get_scale() < scale
        return (wrapped.averaged_by or "scaler") if is_skipped else ""

    def _synchronize_and_step(self, wrapped: Wrapped, way: str, recovers: str) -> str:
        self._average(wrapped)
        self._arrive(wrapped, "synchronized", recovers)
        if way == "synchronize":
            return "" if wrapped.is_local else "synchronize()"
        if way == "synchronize and skip":
            torch.nn.utils.clip_grad_norm_(self._parameters(wrapped), 0.5)
            self._arrive(wrapped, "clipped", recovers)
            with wrapped.optimizer.skip_synchronize() if self._is_distributed else nullcontext():
                wrapped.optimizer.step()
        else:
            if not self._is_distributed:
                self._reduce(wrapped)  # once more
            wrapped.optimizer.step()
        return ""

    def _arrive(self, wrapped: Wrapped, place: str, recovers: str) -> None:
        if place == recovers and self._is_distributed and self._are_even(wrapped):
            recover()

    def _are_even(self, reduced: Wrapped | None) -> bool:
        """Whether no operation waits for gradients of another rank, which a recovery here would not make forgotten.

        reduced: what this optimizer has submitted is done.
        """
        return not any(wrapped.is_uneven for wrapped in self._wraps if wrapped is not reduced)

    def _parameters(self, wrapped: Wrapped) -> list[torch.Tensor]:
        return [self.model[name] for name in wrapped.wrap.parameters]

    def _step_with_closure(self, operation: Closure) -> list[float]:
        """Return what the steps of the ranks that are played here return."""
        wrapped = self._find(operation.optimizer)
        self._clear()
        if not self._is_distributed:
            self._refuse_superseded(wrapped)
            if operation.fails_on and not wrapped.is_local:
                raise UserError(ELSEWHERE)
        if wrapped.wrap.kind == "LBFGS" and operation.gives == "none":
            operation = replace(operation, gives="tensor")  # LBFGS needs a loss
        if isinstance(wrapped.optimizer, LocalSteps):
            self._may_come(operation.uses)
            found = wrapped.optimizer.step_with_closure(operation)
        else:

            def closure() -> object:
                wrapped.optimizer.zero_grad()
                wrapped.begin()
                self._may_come(operation.uses)
                losses = self._passes.run(operation.batch, operation.uses, "eager", lambda _, loss: loss)
                if operation.fails_on.intersection(self._ranks):
                    raise UserError("in the closure")
                if not self._is_distributed:
                    self._reduce(wrapped)
                return give(operation, sum(losses) / (1 if wrapped.wrap.op == "Sum" else len(losses)))

            found = [wrapped.optimizer.step(closure)] * len(self._ranks)
        wrapped.begin()
        self._is_clean = all(other.passes == 0 for other in self._wraps)
        return [math.nan if loss is None else float(loss) for loss in found]

    def _write(self, name: str, batch: int) -> None:
        if not self.model[name].requires_grad:
            return
        parts = [draw_tensor(batch, rank, SHAPES[name]) for rank in self._ranks]
        self._gradients.write(name, parts)

    def _load(self, wrapped: Wrapped) -> None:
        if self._is_clean:
            wrapped.optimizer.load_state_dict(wrapped.optimizer.state_dict())
            wrapped.averaged_by = ""
