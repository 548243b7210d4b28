"""The two kinds of distributed optimizers: one averages gradients before each step, one combines steps by Adasum.

Each is a proxy of the user's optimizer, which keeps its state, its options and its schedulers. The proxy's class is
made as a subclass of the optimizer's class, so that `isinstance` and LR schedulers accept it, but everything that is
not about averaging is read from and written to the optimizer behind it.

Long because the two kinds share their proxy.
"""

import operator
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.untraced import untraced
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.errors import WrongArgumentError
from worker_runtime.reduction import GradientReducer
from worker_runtime.reduction.adasum import AdasumReducer

Closure = Callable[[], Any]
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

# torch.amp.GradScaler reads the gradients of an optimizer in the method of this name, to unscale them and to look for
# infinities; the optimizer is not called at any moment before that.
_UNSCALING = "_unscale_grads_"


class OptimizerProxy:
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
        """Note which attributes are the proxy's, and not those of the optimizer whose class comes in at the end."""
        super().__init_subclass__()
        if not issubclass(cls, torch.optim.Optimizer):
            own = {*vars(OptimizerProxy), *OptimizerProxy.__annotations__, *vars(cls), *cls.__annotations__}
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

    @abstractmethod
    def _prepare_unscaling(self) -> None:
        """A gradient scaler is about to look for infinities: it must find the same on all ranks."""


class AllreduceOptimizer(OptimizerProxy):
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
        self._reducer.passes = read_passes(passes)

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


class AdasumOptimizer(OptimizerProxy):
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


def make_proxy(kind: type[OptimizerProxy], plain: OptimizerT, module: str, **attributes: object) -> OptimizerT:
    """An instance of a new subclass of the optimizer's class; torch's own constructor does not run for it.

    Args:
        kind: of proxy.
        plain: the optimizer behind it.
        module: that the new class names as its own.
        attributes: of the proxy.
    """
    cls = type(plain)
    proxy: Any = object.__new__(type(cls.__name__, (kind, cls), {"__module__": module, "__doc__": cls.__doc__}))
    for name, value in {"_optimizer": plain, **attributes}.items():
        object.__setattr__(proxy, name, value)
    return proxy  # type: ignore[no-any-return]  # an instance of a class made here


def check_optimizer(title: str, optimizer: object) -> None:
    """Raise WrongArgumentError unless it has what torch's optimizers have."""
    if not all(hasattr(optimizer, name) for name in ("param_groups", "state_dict", "step")):
        raise WrongArgumentError(f"{title}: an optimizer was expected, not {type(optimizer).__name__}")


def unwrap(optimizer: OptimizerT) -> OptimizerT:
    """The user's optimizer behind a distributed one; a plain one is returned as it is."""
    return optimizer._optimizer if isinstance(optimizer, OptimizerProxy) else optimizer  # noqa: SLF001 - of this module


def list_parameters(optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> list[tuple[str, torch.Tensor]]:
    """All parameters of an optimizer; those without a name under Horovod's for such."""
    return [
        (names.get(parameter) or f"allreduce.noname.{group_index}.{index}", parameter)
        for group_index, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
