"""The distributed optimizer: the user's own optimizer with gradients averaged before each step.

It is a façade over the optimizer that was given, which keeps its state, its options and its schedulers. The façade's
class is made as a subclass of the optimizer's class, so that `isinstance` and LR schedulers accept it, but everything
that is not about averaging is read from and written to the optimizer behind it.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from worker_runtime.collectives import Combination, Reduction
from worker_runtime.errors import NotServedError
from worker_runtime.reducer import GradientReducer
from worker_runtime.runtime import RUNTIME
from worker_runtime.torch.ops import Average, allreduce, choose_reduction

Closure = Callable[[], Any]
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)

_REDUCER = "_hvd_reducer"  # a weak reference, on the user's optimizer, to whoever averages for it


class _Facade:
    """What a distributed optimizer adds to, and changes of, the optimizer behind it."""

    _optimizer: torch.optim.Optimizer
    _names: dict[torch.Tensor, str]
    _reducer: GradientReducer
    _is_synchronized: bool
    _skips_synchronize: bool

    _OWN = frozenset(
        {
            "_optimizer",
            "_names",
            "_reducer",
            "_is_synchronized",
            "_skips_synchronize",
            "_list_parameters",
            "_average_inside",
            "step",
            "synchronize",
            "skip_synchronize",
            "zero_grad",
            "load_state_dict",
            "backward_passes_per_step",
            "set_backward_passes_per_step",
        }
    )

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        if name in _Facade._OWN or (name.startswith("__") and name.endswith("__")):
            return object.__getattribute__(self, name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any attribute
        if name in _Facade._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

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
    def backward_passes_per_step(self) -> int:
        """How many backward passes are summed locally before one step."""
        return self._reducer.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change it, from the next step on."""
        _check_passes(passes)
        self._reducer.set_passes(passes)

    def step(self, closure: Closure | None = None) -> Any:  # noqa: ANN401 - what the optimizer returns
        """Average the gradients and step.

        Args:
            closure: computes the loss and the gradients. The gradients are averaged each time it has run, and the loss
                that the optimizer sees is averaged too: one that decides by the loss (LBFGS) then decides alike on all
                ranks.
        """
        if self._skips_synchronize:
            return self._optimizer.step(closure)
        if closure is not None:
            return self._optimizer.step(lambda: self._average_inside(closure))
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are averaged a second time",
                stacklevel=2,
            )
        self.synchronize()
        self._is_synchronized = False
        return self._optimizer.step()

    def synchronize(self) -> None:
        """Wait until all gradients are averaged, for example to clip them before `step()`.

        Raises:
            HorovodInternalError: the averaging failed.
        """
        self._reducer.adopt(self._list_parameters())
        self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it, `step()` does not average: `synchronize()` was called before."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False
            self._is_synchronized = False

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients; a reduction of them that has begun is completed and thrown away, on all ranks."""
        self._reducer.discard()
        self._is_synchronized = False
        self._optimizer.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state; the present step is forgotten."""
        self._reducer.reset()
        self._optimizer.load_state_dict(state_dict)

    def _average_inside(self, closure: Closure) -> Any:  # noqa: ANN401 - what the closure returns
        loss = closure()
        self.synchronize()
        self._is_synchronized = False
        if isinstance(loss, torch.Tensor):
            return allreduce(loss.detach(), name="loss")
        return loss

    def _list_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return _list_parameters(self._optimizer, self._names)


def DistributedOptimizer(  # noqa: N802, PLR0917 - Horovod's signature
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: None = None,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
) -> OptimizerT:
    """Wrap `optimizer` so that each step uses the gradients of all ranks.

    The result is an instance of the optimizer's own class and shares everything with it. Also parameters that are
    added or unfrozen later are averaged. All ranks must have the same parameters in the same order.

    Args:
        optimizer: any of torch's optimizers, with or without state; one that is already distributed is wrapped anew.
        named_parameters: `model.named_parameters()`; names for messages.
        compression: not supported yet.
        backward_passes_per_step: gradients of that many backward passes are summed locally (not averaged) before they
            are sent.
        op: how the ranks' gradients are combined.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied after the sum.

    Raises:
        ValueError: a wrong argument.
        HorovodInternalError: Horovod has not been initialized.
    """
    if compression is not None:
        raise NotServedError("DistributedOptimizer", "compression")
    reduction = choose_reduction(op)
    if gradient_predivide_factor != 1.0 and reduction is not Reduction.AVERAGE:
        raise ValueError("gradient_predivide_factor is supported only with op=Average")
    _check_passes(backward_passes_per_step)
    plain = unwrap(optimizer)
    names = _name_parameters(plain, named_parameters)
    RUNTIME.assignment  # noqa: B018 - raises unless initialised
    previous = getattr(plain, _REDUCER, lambda: None)()
    if previous is not None:
        previous.detach()
    reducer = GradientReducer(
        _list_parameters(plain, names),
        lambda: RUNTIME.executor,
        Combination(reduction, 1.0 / gradient_predivide_factor, gradient_predivide_factor),
        backward_passes_per_step,
    )
    setattr(plain, _REDUCER, weakref.ref(reducer))
    return _make_facade(plain, names, reducer)


def unwrap(optimizer: OptimizerT) -> OptimizerT:
    """The user's optimizer behind a distributed one; a plain one is returned as it is."""
    return optimizer._optimizer if isinstance(optimizer, _Facade) else optimizer  # noqa: SLF001 - of this module


def _make_facade(plain: OptimizerT, names: dict[torch.Tensor, str], reducer: GradientReducer) -> OptimizerT:
    """An instance of a new subclass of the optimizer's class; torch's own constructor does not run for it."""
    cls = type(plain)
    facade: Any = object.__new__(type(cls.__name__, (_Facade, cls), {"__module__": __name__, "__doc__": cls.__doc__}))
    facade._optimizer = plain  # noqa: SLF001 - construction
    facade._names = names  # noqa: SLF001 - the same
    facade._reducer = reducer  # noqa: SLF001 - the same
    facade._is_synchronized = False  # noqa: SLF001 - the same
    facade._skips_synchronize = False  # noqa: SLF001 - the same
    return facade  # type: ignore[no-any-return]  # an instance of a class made here


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step is {passes}; it must be at least 1")


def _list_parameters(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield names.get(parameter, f"parameter {index} of group {group_index}"), parameter


def _name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Check the names: each is given once, and none of the optimizer's parameters lacks one."""
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters must be (name, parameter) tuples, as model.named_parameters() gives them")
    names = [name for name, _ in pairs]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"named_parameters has these names more than once: {', '.join(duplicates)}")
    named = {parameter: name for name, parameter in pairs}
    unnamed = [name for name, parameter in _list_parameters(optimizer, {}) if parameter not in named]
    if unnamed:
        raise ValueError(f"named_parameters lacks parameters of the optimizer: {', '.join(unnamed)}")
    return named
