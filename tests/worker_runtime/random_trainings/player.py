"""Plays a random training, as one rank of a world or as the one process that has all ranks' batches.

Long because each operation is told once, for both.
"""

import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.random_trainings.gradients import Gradients
from tests.worker_runtime.random_trainings.programs import (
    ALL,
    BLOCKS,
    PARAMETERS,
    Backward,
    Clear,
    Closure,
    Freeze,
    Load,
    Program,
    Step,
    Wrap,
    Write,
)

SHAPES = {"weight": (4, 3), "offset": (4,), "out": (4,), "skip": (3,), "bias": ()}
ROWS = 3
MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.05),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-3),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, eps=1e-3),
    "LBFGS": functools.partial(torch.optim.LBFGS, lr=0.1, max_iter=3, line_search_fn="strong_wolfe"),  # with closures
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.05, eps=1e-3),
}
SUPERSEDED = "superseded"
ELSEWHERE = "elsewhere"


class UserError(Exception):
    """A mistake of the program itself."""


class RefusedError(RuntimeError):
    """What one process says for an operation that ranks may refuse."""


@dataclass
class Outcome:
    """What a program has come to: the parameters after each operation, and the failures of the operations that have."""

    parameters: list[torch.Tensor] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass
class Wrapped:
    """An optimizer of the program, and how many backward passes have come since its gradients were averaged."""

    optimizer: Any
    wrap: Wrap
    taken: frozenset[str]  # parameters that were not frozen
    passes: int = 0
    has_dropped: bool = False  # some passes, by the model, of which the optimizer does not know
    is_uneven: bool = False  # some ranks have gradients that others have not: they may not be thrown away

    def begin(self) -> None:
        """Its gradients were averaged, or cleared by itself."""
        self.passes, self.has_dropped, self.is_uneven = 0, False, False


def draw_tensor(batch: int, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Data of one rank."""
    chance = torch.Generator().manual_seed(batch * 100 + rank)
    return torch.randn(shape, generator=chance, dtype=torch.float64)


def compute(model: dict[str, torch.Tensor], rows: torch.Tensor, uses: frozenset[str]) -> torch.Tensor:
    """The loss of one rank."""
    guess = torch.zeros_like(rows[:, 0])
    if "hidden" in uses:
        guess = guess + torch.tanh(rows @ model["weight"].T + model["offset"]) @ model["out"]
    if "skip" in uses:
        guess = guess + rows @ model["skip"]
    if "bias" in uses:
        guess = guess + model["bias"]
    return (guess - rows.sum(1)).square().mean()


@functools.cache
def compile_loss(way: str) -> Callable[..., torch.Tensor]:
    """`compute`, compiled; once for each process."""
    return torch.compile(compute, backend=way, dynamic=False)


def play(program: Program) -> Outcome:
    """Play it as one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["HVD_CHECK_REPLICAS"] = str(program.check)
        outcome = Player(program, (hvd.rank(),)).play()
        del os.environ["HVD_CHECK_REPLICAS"]
        hvd.barrier()  # who ends first would be what is told of a failure
        return outcome


def expect(program: Program, refused: Collection[int]) -> Outcome:
    """Play it as one process with the batches of all ranks, but for the operations that these have refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Player(program, tuple(range(program.size)), refused).play()


class Player:
    """The model, its optimizers, and which operations make sense at present: the same on each rank."""

    def __init__(self, program: Program, ranks: Sequence[int], refused: Collection[int] = ()) -> None:
        self._refused = refused
        self._program = program
        self._ranks = ranks
        self._is_distributed = len(ranks) < program.size
        self.model = {
            name: torch.nn.Parameter(draw_tensor(7, place, SHAPES[name])) for place, name in enumerate(PARAMETERS)
        }
        self._gradients = Gradients(self.model, len(ranks))  # of the one process
        self._wraps: list[Wrapped] = []
        self._scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        self._scaler.scale(torch.zeros(1))  # else it has no scale, and refuses to step
        self._is_clean = True  # no gradient has come since all were averaged or cleared
        self._has_infinity = False  # perhaps, in some gradient
        self._outcome = Outcome()

    def play(self) -> Outcome:
        """All operations; a failed one is caught, gradients are cleared, and the program goes on."""
        for number, operation in enumerate(self._program.operations):
            try:
                if number in self._refused:
                    raise RefusedError
                self._perform(operation)
            except (UserError, RuntimeError, ValueError, AssertionError) as error:
                self._outcome.failures[number] = f"{type(error).__name__}: {error}"
                if isinstance(operation, Step | Closure):  # of other failures its optimizer has not heard
                    self._find(operation.optimizer).begin()
                self._clear()
            parameters = [self.model[name].detach().reshape(-1) for name in PARAMETERS]
            self._outcome.parameters.append(torch.cat(parameters).clone())
        return self._outcome

    def _perform(self, operation: object) -> None:  # noqa: C901 - a case for each operation
        match operation:
            case Wrap():
                self._wrap(operation)
            case Backward() if self._may_come(
                operation.uses, is_cut_anywhere=operation.fails and operation.way != "eager"
            ):
                self._backward(operation)
            case Clear(number) if number == ALL:
                self._clear()
            case Clear(None, to_none):
                self._clear_model(to_none=to_none)
            case Clear(number, to_none):
                self._even_out()
                wrapped = self._find(number)
                wrapped.optimizer.zero_grad(set_to_none=to_none)
                wrapped.begin()
            case Step(number, way):
                self._step(self._find(number), way)
            case Closure():
                self._step_with_closure(operation)
            case Write(name, batch) if self._is_clean and not any(wrapped.has_dropped for wrapped in self._wraps):
                self._write(name, batch)
            case Freeze(name) if self._is_clean:
                parameter = self.model[name]
                parameter.requires_grad_(not parameter.requires_grad)
                parameter.grad = None
            case Load(number):
                self._load(self._find(number))

    def _find(self, number: int) -> Wrapped:
        return self._wraps[number % len(self._wraps)]

    def _wrap(self, wrap: Wrap) -> None:
        if not self._is_clean:
            return
        optimizer: Any = MAKERS[wrap.kind]([self.model[name] for name in wrap.parameters])
        if self._is_distributed:
            optimizer = hvd.DistributedOptimizer(
                optimizer,
                [(name, self.model[name]) for name in wrap.parameters],
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
        return True

    def _losses(self, batch: int, uses: Sequence[frozenset[str]], way: str = "eager") -> list[torch.Tensor]:
        """Of the ranks that are played here."""
        losses = []
        for rank in self._ranks:
            is_compiled = self._is_distributed and way != "eager" and len(uses[rank]) == len(BLOCKS)
            function = compile_loss(way) if is_compiled else compute
            losses.append(function(self.model, draw_tensor(batch, rank, (ROWS, 3)), uses[rank]))
        return losses

    def _backward(self, operation: Backward) -> None:
        self._is_clean = False
        self._has_infinity |= operation.is_scaled and operation.infinite is not None
        losses = self._losses(operation.batch, operation.uses, operation.way)
        for rank, loss in zip(self._ranks, losses, strict=True):
            if not loss.requires_grad:
                continue
            final = loss * torch.inf if rank == operation.infinite and operation.is_scaled else loss
            final = self._scaler.scale(final) if operation.is_scaled else final
            with self._as_rank(rank), _failing(self.model) if operation.fails else nullcontext():
                final.backward()
        if operation.fails:
            raise UserError("in backward")

    def _as_rank(self, rank: int) -> AbstractContextManager[None]:
        return nullcontext() if self._is_distributed else self._gradients.of(rank)

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
                    self._average(wrapped)
                wrapped.begin()

    def _clear_model(self, *, to_none: bool) -> None:
        self._even_out()
        for parameter in self.model.values():
            if to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()
        if to_none:
            for wrapped in self._wraps:
                if wrapped.wrap.passes == 1:
                    wrapped.passes, wrapped.has_dropped = 0, wrapped.has_dropped or wrapped.passes > 0
            self._is_clean, self._has_infinity = True, False

    def _average(self, wrapped: Wrapped) -> None:
        """What `synchronize()` does, for one process: a parameter without a gradient counts as zeros."""
        if self._is_distributed:
            wrapped.optimizer.synchronize()
        else:
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

    def _step(self, wrapped: Wrapped, way: str) -> None:
        if self._has_infinity and "scaler" not in way:
            way = "scaler"
        optimizer = wrapped.optimizer
        if not any(parameter.requires_grad for parameter in self._parameters(wrapped)):
            return
        if not self._is_distributed:
            self._refuse_superseded(wrapped)
            if not way.startswith("synchronize"):
                self._reduce(wrapped)
        if way.startswith("synchronize"):
            self._synchronize_and_step(wrapped, way)
        elif way == "plain":
            optimizer.step()
        elif way == "fails":
            hook = optimizer.register_step_pre_hook(_fail)
            try:
                optimizer.step()
            finally:
                hook.remove()
        else:
            if way == "clip and scaler":
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(self._parameters(wrapped), 0.5)
            self._scaler.step(optimizer)
            self._scaler.update()
        wrapped.begin()
        self._is_clean = all(other.passes == 0 for other in self._wraps)

    def _synchronize_and_step(self, wrapped: Wrapped, way: str) -> None:
        self._average(wrapped)
        if way == "synchronize and skip":
            torch.nn.utils.clip_grad_norm_(self._parameters(wrapped), 0.5)
            with wrapped.optimizer.skip_synchronize() if self._is_distributed else nullcontext():
                wrapped.optimizer.step()
        elif way == "synchronize and step":
            if not self._is_distributed:
                self._reduce(wrapped)  # once more
            wrapped.optimizer.step()

    def _parameters(self, wrapped: Wrapped) -> list[torch.Tensor]:
        return [self.model[name] for name in wrapped.wrap.parameters]

    def _step_with_closure(self, operation: Closure) -> None:
        wrapped = self._find(operation.optimizer)
        self._clear()
        if not self._is_distributed:
            self._refuse_superseded(wrapped)
            if operation.fails_on:
                raise UserError(ELSEWHERE)

        def closure() -> object:
            wrapped.optimizer.zero_grad()
            wrapped.begin()
            self._may_come(operation.uses)
            losses = self._losses(operation.batch, operation.uses)
            for rank, loss in zip(self._ranks, losses, strict=True):
                if loss.requires_grad:
                    with self._as_rank(rank):
                        loss.backward()
                if rank in operation.fails_on:
                    raise UserError("in the closure")
            if not self._is_distributed:
                self._reduce(wrapped)
            loss = sum(losses).detach() / len(losses)
            given = {"tensor": loss, "float": loss.item(), "NumPy's": np.float64(loss.item()), "none": None}
            return given[operation.gives]

        wrapped.optimizer.step(closure)
        wrapped.begin()
        self._is_clean = all(other.passes == 0 for other in self._wraps)

    def _write(self, name: str, batch: int) -> None:
        if not self.model[name].requires_grad:
            return
        parts = [draw_tensor(batch, rank, SHAPES[name]) for rank in self._ranks]
        self._gradients.write(name, parts)

    def _load(self, wrapped: Wrapped) -> None:
        if self._is_clean:
            wrapped.optimizer.load_state_dict(wrapped.optimizer.state_dict())


def _fail(*_: object) -> None:
    raise UserError("in the step")


@contextmanager
def _failing(model: dict[str, torch.Tensor]) -> Iterator[None]:
    """A backward pass fails when it comes to one of the parameters, some of the others have their gradients then."""
    parameter = model["weight"]
    if not parameter.requires_grad:
        yield
        return
    hook = parameter.register_hook(_fail)
    try:
        with suppress(UserError):
            yield
    finally:
        hook.remove()
