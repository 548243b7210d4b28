"""The forward and backward passes of one rank, or of all ranks in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import numpy as np
import torch

from tests.worker_runtime.random_trainings.gradients import Gradients
from tests.worker_runtime.random_trainings.model import compile_loss, compute, draw_rows, make_norm, normalize_whole
from tests.worker_runtime.random_trainings.outcome import UserError
from tests.worker_runtime.random_trainings.programs import BLOCKS, PARAMETERS, Closure, Program

Finish = Callable[[int, torch.Tensor], torch.Tensor]  # of a rank's loss, what is differentiated


class Passes:
    """The passes of some ranks, which leave their gradients in the parameters.

    Args:
        program: the program.
        ranks: which are played here.
        model: the parameters by name.
        gradients: the gradients of these ranks.
    """

    def __init__(
        self, program: Program, ranks: Sequence[int], model: Mapping[str, torch.nn.Parameter], gradients: Gradients
    ) -> None:
        self._program = program
        self._ranks = ranks
        self._is_distributed = len(ranks) < program.size
        self._model = model
        self._gradients = gradients

    def run(
        self, batch: int, uses: Sequence[frozenset[str]], way: str, finish: Finish, *, fails: bool = False
    ) -> list[torch.Tensor]:
        """A backward pass of each rank that is played here; return their losses."""
        if self._program.norm and not self._is_distributed:
            return self._run_together(batch, uses, finish)
        losses = []
        normalize = make_norm(self._program.norm) if self._program.norm else None
        for rank in self._ranks:
            is_compiled = self._is_distributed and way != "eager" and len(uses[rank]) == len(BLOCKS)
            function = compile_loss(way) if is_compiled else compute
            losses.append(function(self._model, draw_rows(batch, rank), uses[rank], normalize))
        for rank, loss in zip(self._ranks, losses, strict=True):
            if loss.requires_grad:
                with self._as_rank(rank), _failing(self._model) if fails else nullcontext():
                    finish(rank, loss).backward()
        return [loss.detach() for loss in losses]

    def _run_together(self, batch: int, uses: Sequence[frozenset[str]], finish: Finish) -> list[torch.Tensor]:
        """The same where the loss of each rank depends on the batches and the models of all."""
        models = [
            {name: each.detach().clone().requires_grad_(each.requires_grad) for name, each in self._model.items()}
            for _ in self._ranks
        ]
        normalize = normalize_whole(models, batch, self._program.norm)
        losses = [compute(models[rank], draw_rows(batch, rank), uses[rank], normalize) for rank in self._ranks]
        finals = [finish(rank, loss) for rank, loss in enumerate(losses) if loss.requires_grad]
        if finals:
            torch.stack(finals).sum().backward()
            for name in PARAMETERS:
                self._gradients.add(name, [model[name].grad for model in models])
        return [loss.detach() for loss in losses]

    def _as_rank(self, rank: int) -> AbstractContextManager[None]:
        return nullcontext() if self._is_distributed else self._gradients.of(rank)


def give(operation: Closure, loss: torch.Tensor) -> object:
    """What a closure returns."""
    if operation.gives == "none":
        return None
    given = {"tensor": loss, "float": loss.item(), "NumPy's": np.float64(loss.item())}
    return given[operation.gives]


def fail(*_: object) -> None:
    """A hook of a program that makes a mistake."""
    raise UserError("in the step")


@contextmanager
def _failing(model: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """A backward pass fails when it comes to one of the parameters, some of the others have their gradients then."""
    parameter = model["weight"]
    if not parameter.requires_grad:
        yield
        return
    hook = parameter.register_hook(fail)
    try:
        with suppress(UserError):
            yield
    finally:
        hook.remove()
