"""Steps with gradients of this rank alone, which the user's optimizer makes where the distributed one is not asked.

With them the ranks' parameters part, and each rank continues without an error. So the first one raises.
"""

import functools
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, Self

import torch
from torch.utils.hooks import RemovableHandle

from worker_runtime.errors import LocalStepError
from worker_runtime.reduction import GradientReducer
from worker_runtime.reduction.adasum import AdasumReducer

Reducer = GradientReducer | AdasumReducer

# Optimizers without a schedule (ScheduleFree) exchange the parameters by these, for which gradients do not matter.
_EXCHANGES = ("train", "eval")
_GUARDS: weakref.WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


class StepGuard:
    """A context in which the user's optimizer may step; elsewhere its step with local gradients raises.

    Only the newest guard of an optimizer counts.

    Args:
        plain: the user's optimizer.
        reducer: the object that averages its gradients. It is held weakly.
    """

    def __init__(self, plain: torch.optim.Optimizer, reducer: Reducer) -> None:
        self._plain = weakref.ref(plain)
        self._reducer = weakref.ref(reducer)
        self._was_used = not reducer.has_others
        self._is_open = False
        register = getattr(plain, "register_step_pre_hook", None)
        if register is None:
            return
        if plain in _GUARDS:
            _GUARDS.pop(plain).remove()
        _GUARDS[plain] = register(self._refuse)

    def __enter__(self) -> Self:
        self._was_used = self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False

    def _refuse(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Called before each step of the user's optimizer, or of a deep copy of it."""
        if self._is_open or optimizer is not self._plain():
            return
        reducer = self._reducer()
        is_local = not self._was_used  # the program has dropped the distributed optimizer
        if reducer is not None:
            is_local = reducer.has_local_gradients
        if is_local:
            raise LocalStepError("step", "call step() of the optimizer that DistributedOptimizer has returned")


def is_own(optimizer: torch.optim.Optimizer, name: str, attribute: object) -> bool:
    """Whether an attribute is a public method of the optimizer that may step, and that torch's base class lacks."""
    return (
        type(attribute) is MethodType
        and attribute.__self__ is optimizer
        and not (name.startswith("_") or name in _EXCHANGES or hasattr(torch.optim.Optimizer, name))
    )


def watch(method: Callable[..., Any], optimizer: torch.optim.Optimizer, remedy: str) -> Callable[..., Any]:
    """A method that raises LocalStepError after it has changed parameters, such as the two steps of SAM.

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
