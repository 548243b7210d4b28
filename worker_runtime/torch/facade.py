"""A distributed optimizer as its user sees it: the optimizer that was given, and a little more.

It is a façade over that optimizer, which keeps its state, its options and its schedulers. The façade's class is made as
a subclass of the optimizer's class, so that `isinstance` and LR schedulers accept it, but everything that is not about
averaging is read from and written to the optimizer behind it.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from worker_runtime.api.process_set import ProcessSet
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import WrongArgumentError

Closure = Callable[[], Any]
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

# torch.amp.GradScaler reads the gradients of an optimizer in the method of this name, to unscale them and to look for
# infinities; there is no other moment before that at which the optimizer would hear of it.
_UNSCALING = "_unscale_grads_"


class Facade:
    """What a distributed optimizer adds to, and changes of, the optimizer behind it.

    The names with an underscore are those that programs written for Horovod look at.
    """

    _OWN: ClassVar[frozenset[str]] = frozenset()

    op: Reduction
    process_set: ProcessSet
    _compression: object
    _optimizer: torch.optim.Optimizer
    _names: dict[torch.Tensor, str]

    def __init_subclass__(cls) -> None:
        """Note which attributes are the façade's, and not those of the optimizer whose class comes in at the end."""
        super().__init_subclass__()
        if not issubclass(cls, torch.optim.Optimizer):
            own = {*vars(Facade), *Facade.__annotations__, *vars(cls), *cls.__annotations__}
            cls._OWN = frozenset(name for name in own if not name.startswith("__"))

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        if name.startswith("__") or name in type(self)._OWN:  # noqa: SLF001 - this class's
            return object.__getattribute__(self, name)
        if name == "param_groups" and sys._getframe(1).f_code.co_name == _UNSCALING:  # noqa: SLF001 - see _UNSCALING
            self._prepare_unscaling()
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any attribute
        if name in type(self)._OWN:  # noqa: SLF001 - this class's
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __delattr__(self, name: str) -> None:
        if name in type(self)._OWN:  # noqa: SLF001 - this class's
            object.__delattr__(self, name)
        else:
            delattr(self._optimizer, name)

    def __repr__(self) -> str:
        return f"Distributed{self._optimizer!r}"

    def __reduce__(self) -> NoReturn:
        """Refuse: a copy would average the same parameters a second time."""
        raise TypeError("a distributed optimizer cannot be copied or pickled; use its state_dict()")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:  # noqa: ANN401 - object's signature
        self.__reduce__()

    def __getstate__(self) -> NoReturn:
        self.__reduce__()

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The name of each parameter."""
        return {parameter: name for name, parameter in self._list_parameters()}

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        """The parameters that require gradients."""
        return {parameter for _, parameter in self._list_parameters() if parameter.requires_grad}

    def _list_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """All parameters of the optimizer, named."""
        return list_parameters(self._optimizer, self._names)

    @property
    @abstractmethod
    def _handles(self) -> dict[torch.Tensor, Any]:
        """What is in flight, by parameter."""

    @property
    @abstractmethod
    def backward_passes_per_step(self) -> int:
        """How many backward passes are summed locally before one step."""

    @abstractmethod
    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it, from the next step on."""

    @abstractmethod
    def step(self, closure: Closure | None = None) -> Any:  # noqa: ANN401 - what the optimizer returns
        """Step with all ranks."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks, if they ever are."""

    @abstractmethod
    def skip_synchronize(self) -> AbstractContextManager[None]:
        """In it, `step()` does not synchronize."""

    @abstractmethod
    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state."""

    @abstractmethod
    def _prepare_unscaling(self) -> None:
        """A gradient scaler is about to look for infinities: it must find the same on all ranks."""


def make_facade(kind: type[Facade], plain: OptimizerT, module: str, **attributes: object) -> OptimizerT:
    """An instance of a new subclass of the optimizer's class; torch's own constructor does not run for it.

    Args:
        kind: of façade.
        plain: the optimizer behind it.
        module: that the new class names as its own.
        attributes: of the façade.
    """
    cls = type(plain)
    facade: Any = object.__new__(type(cls.__name__, (kind, cls), {"__module__": module, "__doc__": cls.__doc__}))
    for name, value in {"_optimizer": plain, **attributes}.items():
        object.__setattr__(facade, name, value)
    return facade  # type: ignore[no-any-return]  # an instance of a class made here


def check_optimizer(title: str, optimizer: object) -> None:
    """Raise WrongArgumentError unless it has what torch's optimizers have."""
    if not all(hasattr(optimizer, name) for name in ("param_groups", "state_dict", "step")):
        raise WrongArgumentError(f"{title}: an optimizer was expected, not {type(optimizer).__name__}")


def unwrap(optimizer: OptimizerT) -> OptimizerT:
    """The user's optimizer behind a distributed one; a plain one is returned as it is."""
    return optimizer._optimizer if isinstance(optimizer, Facade) else optimizer  # noqa: SLF001 - of this module


def list_parameters(optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> list[tuple[str, torch.Tensor]]:
    """All parameters of an optimizer; those without a name under Horovod's for such."""
    return [
        (names.get(parameter) or f"allreduce.noname.{group_index}.{index}", parameter)
        for group_index, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
