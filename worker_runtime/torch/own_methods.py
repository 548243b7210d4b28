"""Methods that the user's optimizer class adds to torch's, such as the two steps of SAM.

Nobody knows what such a method does. Where it changes parameters while their gradients are this rank's own, the ranks'
parameters part, and each rank continues without an error. So the first such call raises one.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from worker_runtime.errors import LocalStepError

# Optimizers without a schedule (ScheduleFree) exchange the parameters by these, for which gradients do not matter.
_EXCHANGES = ("train", "eval")


def is_own(optimizer: torch.optim.Optimizer, name: str, attribute: object) -> bool:
    """Whether an attribute is a public method of the optimizer that may step, and that torch's base class lacks."""
    return (
        type(attribute) is MethodType
        and attribute.__self__ is optimizer
        and not (name.startswith("_") or name in _EXCHANGES or hasattr(torch.optim.Optimizer, name))
    )


def watch(method: Callable[..., Any], optimizer: torch.optim.Optimizer, remedy: str) -> Callable[..., Any]:
    """The same method, which raises LocalStepError after it has changed parameters.

    Args:
        method: of the optimizer.
        optimizer: the user's.
        remedy: what to do instead.
    """

    def list_versions() -> list[int]:
        return [parameter._version for group in optimizer.param_groups for parameter in group["params"]]  # noqa: SLF001 - torch has no public way

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = list_versions()
        result = method(*args, **kwargs)
        if list_versions() != before:
            raise LocalStepError(method.__name__, remedy)
        return result

    return call
