"""The two kinds of distributed optimizers: `AllreduceOptimizer` averages gradients, `AdasumOptimizer` combines steps.

Each is a proxy of the user's optimizer, which keeps its state, options and schedulers. The proxy's class is created as
a subclass of the optimizer's class, so that `isinstance` and LR schedulers accept it. All attributes that are not the
proxy's own are read from and written to the wrapped optimizer.
"""

import math
import operator
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from worker_runtime.account import ACCOUNT
from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.untraced import untraced
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import WrongArgumentError
from worker_runtime.reduction import GradientReducer
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.torch.closures import read_loss
from worker_runtime.torch.local_steps import Reducer, StepGuard, is_own, watch

Closure = Callable[[], Any]
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

# torch.amp.GradScaler reads an optimizer's gradients in the method of this name, to unscale them and to check for
# infinities. It makes no earlier call to the optimizer that the proxy could use to average them.
_UNSCALING = "_unscale_grads_"

_NOT_DERIVED = (
    "{}: Horovod's class _DistributedOptimizer is here for annotations and isinstance() only, because hvdrun has none "
    "of the private methods that a subclass overrides; call hvd.DistributedOptimizer(optimizer, ...), with your own "
    "compression object to change how gradients travel"
)


class OptimizerProxy:
    """A distributed optimizer in front of the user's.

    Programs written for Horovod read the properties with an underscore (`_handles`, `_parameter_names`).
    """

    _OWN: ClassVar[frozenset[str]] = frozenset()
    _LOCAL_REMEDY: ClassVar[str]

    op: Reduction
    process_set: ProcessSet
    _compression: object
    _optimizer: torch.optim.Optimizer
    _names: dict[torch.Tensor, str]
    _reducer: Reducer
    _guard: StepGuard

    def __init_subclass__(cls, *, is_ours: bool = False) -> None:
        """Collect the names of the proxy's own attributes; all others belong to the wrapped optimizer.

        Raises:
            TypeError: the program derives a class of its own.
        """
        super().__init_subclass__()
        # Lightning derives a class from that of a distributed optimizer, which is no base with names of its own.
        if not is_ours and any("_OWN" in vars(base) for base in cls.__bases__):
            raise TypeError(_NOT_DERIVED.format(cls.__qualname__))
        if cls.__bases__ == (OptimizerProxy,):
            own = {*vars(OptimizerProxy), *OptimizerProxy.__annotations__, *vars(cls), *cls.__annotations__}
            cls._OWN = frozenset(name for name in own if not name.startswith("__"))

    def __init__(self, *_: object, **__: object) -> None:
        """Raise TypeError: `make_proxy` creates proxies. Programs create Horovod's class with its methods copied."""
        raise TypeError(_NOT_DERIVED.format(type(self).__qualname__))

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in type(self)._OWN:  # noqa: SLF001 - this class's
            return object.__getattribute__(self, name)
        if name == "param_groups" and sys._getframe(1).f_code.co_name == _UNSCALING:  # noqa: SLF001 - who asks
            self._prepare_unscaling(sys._getframe(1).f_locals.get("self"))  # noqa: SLF001 - the scaler that asks
        plain = self._optimizer
        attribute = getattr(plain, name)
        if is_own(plain, name, attribute) and self._reducer.has_local_gradients:
            return watch(attribute, plain, self._LOCAL_REMEDY)
        return attribute

    def __setattr__(self, name: str, value: Any) -> None:
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
        """Raise TypeError: a copy would average the same parameters a second time."""
        raise TypeError("a distributed optimizer cannot be copied or pickled; use its state_dict()")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
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
        """All parameters of the optimizer, with their names."""
        return list_parameters(self._optimizer, self._names)

    @abstractmethod
    def _prepare_unscaling(self, scaler: object) -> None:
        """Prepare for a gradient scaler's check for infinities, so that it finds the same on all ranks."""


class AllreduceOptimizer(OptimizerProxy, is_ours=True):
    """Averages (or sums, ...) gradients over the ranks before each step."""

    __init__ = OptimizerProxy.__init__  # programs copy the attributes of the class itself
    _LOCAL_REMEDY = "call optimizer.synchronize() before it"

    _reducer: GradientReducer
    _is_synchronized: bool  # synchronize() was called for the present gradients, if the reducer has no newer ones
    _is_unscaled: bool  # a gradient scaler's check has synchronized the present gradients, under the same condition
    _skips_synchronize: bool

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """The operations in flight, by parameter."""
        return self._reducer.handles

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that are summed locally before one step."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number; for parameters that had a backward pass in this step, from the next step on."""
        self._reducer.passes = read_passes(passes)

    @untraced
    def step(self, closure: Closure | None = None) -> Any:
        """Average the gradients, then step.

        Args:
            closure: computes gradients and returns the loss, a tensor or a number, or None. After each call of it,
                gradients and loss are averaged over the ranks, so that an optimizer that decides by the loss (LBFGS)
                decides the same on all ranks. Inside `skip_synchronize()` only the loss is averaged.

        Returns:
            The return value of the optimizer's own `step()`.

        Raises:
            ValueError: the closure returned something else.
            HorovodInternalError: the averaging failed, or another rank discarded its gradients of the last step. The
                parameters are unchanged.
        """
        with ACCOUNT.step, self._guard:
            if closure is not None:
                self._is_synchronized = self._is_unscaled = False
                return self._optimizer.step(lambda: self._average_inside(closure))
            if self._skips_synchronize:
                self._reducer.settle()
                return self._optimizer.step()
            if self._is_unscaled and self._reducer.are_all_reduced():
                self._is_unscaled = False
                return self._optimizer.step()
            self._average_gradients()
            self._reducer.settle()
            return self._optimizer.step()

    @untraced
    def synchronize(self) -> None:
        """Average all gradients now, for example to clip them before `step()`.

        Raises:
            HorovodInternalError: the averaging failed.
        """
        self._reducer.synchronize()
        self._is_synchronized, self._is_unscaled = True, False

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which `step()` does not average, because you called `synchronize()` before."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False
            self._is_synchronized = self._is_unscaled = False

    @untraced
    def zero_grad(self, set_to_none: bool | None = None, **more: Any) -> None:
        """Clear the gradients. Reductions in flight are completed on all ranks, and their results discarded.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        self._reducer.discard()
        _clear(self._optimizer, set_to_none, more)

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state. Like `zero_grad()`, this discards the gradients of the present step."""
        self._reducer.discard()
        self._optimizer.load_state_dict(state_dict)

    def _prepare_unscaling(self, scaler: object) -> None:
        """Average, unless the user already has."""
        if not self._skips_synchronize and not (self._is_synchronized and self._reducer.are_all_reduced()):
            self._reducer.synchronize()
            self._is_synchronized, self._is_unscaled = False, True
        self._reducer.settle(_find_scale(scaler))

    def _average_gradients(self) -> None:
        if self._is_synchronized and self._reducer.is_reduced:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are averaged a second time",
                stacklevel=3,
            )
        self._reducer.synchronize()
        self._is_synchronized = self._is_unscaled = False

    def _average_inside(self, closure: Closure) -> Any:
        with nullcontext() if self._skips_synchronize else self._reducer.preparing():
            loss = closure()
            mine = read_loss(loss)
        if not self._skips_synchronize:
            self._average_gradients()
            self._reducer.settle()
        # Also without a loss: ranks of which only some have one must not part.
        average = self._reducer.average(mine, "no loss" if loss is None else "")
        if loss is None:
            return None
        if isinstance(loss, torch.Tensor):
            return average
        return average.item()


class AdasumOptimizer(OptimizerProxy, is_ours=True):
    """Combines the ranks' parameter updates by Adasum. The optimizer's state, such as momentum, differs between ranks.

    Horovod steps each parameter as soon as its gradient is computed. This class steps all parameters in `step()`, with
    bit for bit the same result.
    """

    __init__ = OptimizerProxy.__init__  # as above
    _LOCAL_REMEDY = "with op=Adasum only step() may change them"

    _reducer: AdasumReducer
    _passes: int

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        """Empty: no operation is in flight between calls."""
        return {}

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes before one step, as you set it; without effect."""
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number; without effect."""
        self._passes = read_passes(passes)

    @untraced
    def step(self, closure: Closure | None = None) -> Any:
        """Step with this rank's gradients, then combine the ranks' updates.

        Args:
            closure: computes this rank's gradients and returns its loss.

        Returns:
            The return value of the optimizer's own `step()`.

        Raises:
            ValueError: Adasum does not support the dtype of a parameter.
            HorovodInternalError: the operation failed. The parameters are unchanged.
        """
        with ACCOUNT.step, self._guard:
            return self._reducer.step(lambda: self._optimizer.step(closure))

    def synchronize(self) -> None:
        """Do nothing: Adasum combines updates, not gradients."""

    def skip_synchronize(self) -> NoReturn:
        """Raise AssertionError, as Horovod does: a step that is not combined would make the ranks' parameters differ.

        Raises:
            AssertionError: always.
        """
        raise AssertionError(
            "skip_synchronize() has no meaning with op=Adasum, which combines steps; call step() alone"
        )

    def zero_grad(self, set_to_none: bool | None = None, **more: Any) -> None:
        """Clear the gradients; see `AllreduceOptimizer.zero_grad`."""
        _clear(self._optimizer, set_to_none, more)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state."""
        self._optimizer.load_state_dict(state_dict)

    def _prepare_unscaling(self, scaler: object) -> None:
        """Make all ranks find an infinity where one rank has one, so that all skip the step."""
        gradients = [parameter.grad for _, parameter in self._list_parameters() if parameter.grad is not None]
        self._reducer.spread_infinity(gradients, _find_scale(scaler))


def _clear(optimizer: torch.optim.Optimizer, set_to_none: bool | None, more: dict[str, Any]) -> None:
    """Clear gradients. An optimizer may have no parameter `set_to_none`, which accelerate looks for in the proxy."""
    if set_to_none is not None:
        more["set_to_none"] = set_to_none
    optimizer.zero_grad(**more)


def _find_scale(scaler: object) -> torch.Tensor | float:
    """By what a gradient scaler has multiplied the loss; infinity where it does not say."""
    scale = getattr(scaler, "_scale", None)
    if isinstance(scale, torch.Tensor):
        return scale
    return math.inf


def read_passes(passes: object) -> int:
    """The argument `backward_passes_per_step` as an integer.

    Raises:
        ValueError: it is not an integer, or less than 1.
    """
    try:
        number = operator.index(passes)  # type: ignore[arg-type]  # a wrong type raises the TypeError
    except TypeError:
        raise WrongArgumentError(f"backward_passes_per_step is {passes!r}; it must be an integer") from None
    if number <= 0:
        raise ValueError(f"backward_passes_per_step is {number}; it must be at least 1")
    return number


def make_proxy(
    kind: type[OptimizerProxy], plain: OptimizerT, module: str, reducer: Reducer, **attributes: object
) -> OptimizerT:
    """Create the proxy of an optimizer, as an instance of a new subclass of the optimizer's class.

    torch's constructor does not run for it.

    Args:
        kind: AllreduceOptimizer or AdasumOptimizer.
        plain: the user's optimizer.
        module: the `__module__` of the new class.
        reducer: the object that averages gradients, or combines steps.
        attributes: the proxy's own attributes.
    """
    cls = type(plain)
    own = {"__module__": module, "__doc__": cls.__doc__}
    proxy: Any = object.__new__(type(cls.__name__, (kind, cls), own, is_ours=True))
    guard = StepGuard(plain, reducer)
    for name, value in {"_optimizer": plain, "_reducer": reducer, "_guard": guard, **attributes}.items():
        object.__setattr__(proxy, name, value)
    return proxy  # type: ignore[no-any-return]  # an instance of the new class


def check_optimizer(title: str, optimizer: object) -> None:
    """Raise WrongArgumentError unless the argument has the attributes of a torch optimizer."""
    if not all(hasattr(optimizer, name) for name in ("param_groups", "state_dict", "step")):
        raise WrongArgumentError(f"{title}: an optimizer was expected, not {type(optimizer).__name__}")


def unwrap(optimizer: OptimizerT) -> OptimizerT:
    """The user's optimizer inside a distributed one; a plain optimizer is returned unchanged."""
    return optimizer._optimizer if isinstance(optimizer, OptimizerProxy) else optimizer  # noqa: SLF001 - of this module


def list_parameters(optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]) -> list[tuple[str, torch.Tensor]]:
    """All parameters of an optimizer with their names; unnamed ones get the name that Horovod gives them."""
    return [
        (names.get(parameter) or f"allreduce.noname.{group_index}.{index}", parameter)
        for group_index, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
