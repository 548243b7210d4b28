"""The optimizers of all ranks that combine their steps by Adasum, in one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.worker_runtime.random_trainings.gradients import Gradients
from tests.worker_runtime.random_trainings.model import compute, draw_rows, make_parameter
from tests.worker_runtime.random_trainings.outcome import ELSEWHERE, UserError
from tests.worker_runtime.random_trainings.passes import give
from tests.worker_runtime.random_trainings.programs import Closure

Copies = Mapping[str, torch.nn.Parameter]
Perform = Callable[[int, Any, Copies], object]  # of a rank, with its optimizer and its parameters


class LocalSteps:
    """An optimizer for each rank, with parameters and a state of its own.

    Args:
        make: makes an optimizer of parameters.
        model: the common parameters.
        names: of these, the optimizer's.
        size: how many ranks.
        gradients: the gradients of the ranks.
    """

    def __init__(
        self,
        make: Callable[..., torch.optim.Optimizer],
        model: Mapping[str, torch.nn.Parameter],
        names: Sequence[str],
        size: int,
        gradients: Gradients,
    ) -> None:
        self._model = model
        self._names = names
        self._gradients = gradients
        self._copies = [
            {name: make_parameter(parameter, is_widened=False) for name, parameter in model.items()}
            for _ in range(size)
        ]
        self._optimizers = [make([copies[name] for name in names]) for copies in self._copies]

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT002 - torch's signature
        """Of all ranks."""
        for name in self._names:
            if set_to_none:
                self._model[name].grad = None
            else:
                self._gradients.zero(name)

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Of all ranks."""
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def state_dict(self) -> list[dict[str, Any]]:
        """Of all ranks."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def step(self, perform: Perform) -> list[object]:
        """Each rank steps by itself, from the common parameters; the steps are combined, unless one raises.

        Returns:
            What the ranks' calls returned.
        """
        found = self.visit(perform)
        with torch.no_grad():
            for name in self._names:
                start = self._model[name].clone()
                self._model[name].add_(combine([copies[name] - start for copies in self._copies]))
        return found

    def visit(self, perform: Perform) -> list[object]:
        """Each rank does something with its optimizer and its gradients; the first error is raised after the last."""
        found, errors = [], []
        for rank, (optimizer, copies) in enumerate(zip(self._optimizers, self._copies, strict=True)):
            self._load(rank, copies)
            try:
                found.append(perform(rank, optimizer, copies))
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors.append(error)
        for name in self._model:
            self._gradients.write(name, [copies[name].grad for copies in self._copies])
        if errors:
            raise errors[0]
        return found

    def step_in_a_way(self, way: str, scaler: torch.amp.GradScaler) -> None:
        """Step, not with a closure."""
        if way == "fails":
            raise UserError("in the step")
        if "scaler" not in way:
            self.step(lambda _, optimizer, __: optimizer.step())
            return
        self._spread_infinity()
        if way == "clip and scaler":

            def clip(_: int, optimizer: torch.optim.Optimizer, copies: Copies) -> None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_([copies[name] for name in self._names], 0.5)

            self.visit(clip)
        self.step(lambda _, optimizer, __: scaler.step(optimizer))
        scaler.update()

    def step_with_closure(self, operation: Closure) -> list[Any]:
        """Each rank has its own loss."""

        def step(rank: int, optimizer: torch.optim.Optimizer, copies: Copies) -> object:
            def closure() -> object:
                optimizer.zero_grad()
                loss = compute(copies, draw_rows(operation.batch, rank), operation.uses[rank])
                if loss.requires_grad:
                    loss.backward()
                if rank in operation.fails_on:
                    raise UserError(ELSEWHERE)
                return give(operation, loss.detach())

            return optimizer.step(closure)

        return self.step(step)

    def _spread_infinity(self) -> None:
        """Where one rank has a gradient that is not finite, all gradients are infinite."""
        parts = [part for name in self._names for part in self._gradients.list_parts(name) if part is not None]
        if all(bool(torch.isfinite(part).all()) for part in parts):
            return
        for name in self._names:
            parts = self._gradients.list_parts(name)
            self._gradients.write(name, [None if part is None else torch.full_like(part, torch.inf) for part in parts])

    def _load(self, rank: int, copies: Copies) -> None:
        for name, copy in copies.items():
            part = self._gradients.list_parts(name)[rank]
            copy.requires_grad_(self._model[name].requires_grad)
            copy.data.copy_(self._model[name].detach())
            copy.grad = None if part is None else part.clone()


def combine(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Adasum of the ranks' vectors: of pairs of neighbours, of pairs of these; the surplus goes into the first ones."""
    power = 1 << (len(vectors).bit_length() - 1)
    tree = list(vectors[:power])
    for place, surplus in enumerate(vectors[power:]):
        tree[place] = _combine_two(tree[place], surplus)
    while len(tree) > 1:
        tree = [_combine_two(one, other) for one, other in zip(tree[::2], tree[1::2], strict=True)]
    return tree[0]


def _combine_two(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dot = (one * other).sum()
    of_one, of_other = (
        1.0 if not square else 1.0 - dot / (2.0 * square) for square in ((one * one).sum(), (other * other).sum())
    )
    return of_one * one + of_other * other
