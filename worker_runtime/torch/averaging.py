"""The distributed optimizer that averages gradients before each step."""

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from worker_runtime.collectives.untraced import untraced
from worker_runtime.errors import WrongArgumentError
from worker_runtime.reduction import GradientReducer
from worker_runtime.torch.facade import Closure, Facade


class Averaging(Facade):
    """Steps with the gradients of all ranks; however they are combined, this calls it to average."""

    _reducer: GradientReducer
    _is_synchronized: bool  # by the user; as long as the gradients are still those, which the reducer knows
    _is_unscaled: bool  # for a gradient scaler, and so synchronized; as long as the same
    _skips_synchronize: bool

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """What is in flight, by parameter."""
        return self._reducer.handles

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes are summed locally before one step."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it; for parameters that have had a backward pass in this step, from the next one on."""
        self._reducer.set_passes(read_passes(passes))

    @untraced
    def step(self, closure: Closure | None = None) -> Any:  # noqa: ANN401 - what the optimizer returns
        """Average the gradients and step.

        Args:
            closure: computes the loss and the gradients. The gradients are averaged each time it has run, and the loss
                that the optimizer sees is averaged too: one that decides by the loss (LBFGS) then decides alike on all
                ranks.

        Returns:
            What the optimizer's own `step()` returns.

        Raises:
            HorovodInternalError: the averaging failed, or another rank has thrown away the gradients of the last step;
                the parameters are as they were.
        """
        if self._skips_synchronize:
            return self._optimizer.step(closure)
        if closure is not None:
            self._is_synchronized = self._is_unscaled = False
            return self._optimizer.step(lambda: self._average_inside(closure))
        if self._is_unscaled and self._reducer.are_all_reduced():
            self._is_unscaled = False
            return self._optimizer.step()
        if self._is_synchronized and self._reducer.is_reduced:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are averaged a second time",
                stacklevel=2,
            )
        self._reducer.synchronize()
        self._is_synchronized = self._is_unscaled = False
        return self._optimizer.step()

    @untraced
    def synchronize(self) -> None:
        """Wait until all gradients are averaged, for example to clip them before `step()`.

        Raises:
            HorovodInternalError: the averaging failed.
        """
        self._reducer.synchronize()
        self._is_synchronized, self._is_unscaled = True, False

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it, `step()` does not average: `synchronize()` was called before."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False
            self._is_synchronized = self._is_unscaled = False

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients; reductions of them that have begun are completed on all ranks, and thrown away.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._reducer.discard()
        self._optimizer.zero_grad(set_to_none)

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state; the present step is thrown away, as by `zero_grad()`."""
        self._reducer.discard()
        self._optimizer.load_state_dict(state_dict)

    def _prepare_unscaling(self) -> None:
        """Average first, unless the user has."""
        if self._skips_synchronize or (self._is_synchronized and self._reducer.are_all_reduced()):
            return
        self._reducer.synchronize()
        self._is_synchronized, self._is_unscaled = False, True

    def _average_inside(self, closure: Closure) -> Any:  # noqa: ANN401 - what the closure returns
        with self._reducer.preparing():
            loss = closure()
        self._reducer.synchronize()
        return self._reducer.average(loss) if isinstance(loss, torch.Tensor) else loss


def read_passes(passes: object) -> int:
    """How many backward passes a program wants for each step.

    Raises:
        ValueError: it is no integer, or not at least one.
    """
    try:
        number = operator.index(passes)  # type: ignore[arg-type]  # that it may be none is what is looked for
    except TypeError:
        raise WrongArgumentError(f"backward_passes_per_step is {passes!r}; it must be an integer") from None
    if number <= 0:
        raise ValueError(f"backward_passes_per_step is {number}; it must be at least 1")
    return number
