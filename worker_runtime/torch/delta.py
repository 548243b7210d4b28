"""The distributed optimizer of Adasum: each rank steps with its own gradients, and the steps are combined."""

from typing import Any, NoReturn

import torch

from worker_runtime.collectives.untraced import untraced
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.torch.averaging import read_passes
from worker_runtime.torch.facade import Closure, Facade


class Delta(Facade):
    """Combines by how much each parameter has moved. The optimizer's state, such as momentum, is each rank's own.

    Horovod steps each parameter as soon as its gradient is there; here all are stepped in `step()`, which is the same
    to the last bit, and leaves the optimizer whole.
    """

    _reducer: AdasumReducer
    _passes: int

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """Nothing is ever in flight between calls."""
        return {}

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes are summed locally before one step."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it; nobody counts them here."""
        self._passes = read_passes(passes)

    @untraced
    def step(self, closure: Closure | None = None) -> Any:  # noqa: ANN401 - what the optimizer returns
        """Step, and combine the steps.

        Args:
            closure: computes the loss and the gradients, all of this rank alone.

        Raises:
            ValueError: the dtype of a parameter has no Adasum.
            HorovodInternalError: the operation failed; the parameters are where they were before.
        """
        return self._reducer.step(lambda: self._optimizer.step(closure))

    def synchronize(self) -> None:
        """Do nothing: gradients are never combined."""

    def skip_synchronize(self) -> NoReturn:
        """Refuse: there is nothing to skip, and a step that is not combined would let the ranks drift apart.

        Raises:
            AssertionError: always; as in Horovod.
        """
        raise AssertionError(
            "skip_synchronize() has no meaning with op=Adasum, which combines steps; call step() alone"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients."""
        self._optimizer.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state."""
        self._optimizer.load_state_dict(state_dict)

    def _prepare_unscaling(self) -> None:
        """Let all ranks find an infinity where one has it, so that all skip the step."""
        gradients = [parameter.grad for _, parameter in self._list_parameters() if parameter.grad is not None]
        self._reducer.spread_infinity(gradients)
