"""State dicts of modules and optimizers, of which most are the same objects at each save.

To make a state dict of some hundred tensors, and to walk through it, takes longer than all else that a save does beside
the copy. So the last state dict is kept, with the containers from which it was made: the dicts of each module, and the
state of each parameter in an optimizer. As long as these hold the same objects, the state dict is up to date, whatever
the values of the tensors are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import Module
from torch.optim import Optimizer

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_MOST_CHANGES = 8  # after more changes of the containers each save makes a state dict
_CONTAINERS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
_NUMBERS = count()
_OWN_STATE = ("state_dict", "_save_to_state_dict", "get_extra_state")


Trace: TypeAlias = list[list[Any]]


class Known(NamedTuple):
    """A dict whose values are tensors, or dicts of tensors, and which nobody changes.

    number: unique in this process.
    value: the dict.
    tensors: in the order of the dict.
    """

    number: int
    value: Mapping[Any, Any]
    tensors: list[torch.Tensor]


class KnownStates:
    """Makes the state dicts of one object again and again.

    Args:
        owner: a module or an optimizer.

    known: the part of the last state dict that is the same as before; None where there is none.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.known: Known | None = None
        self._source: _Source | None = None
        self._trace: Trace = []
        self._packed: list[list[int]] = []  # of an optimizer, the numbers of the parameters of each group
        self._changes = 0

    def take(self) -> Any:
        """The present state dict."""
        if self._source is not None and self.known is not None and self._source.trace() == self._trace:
            return self._renew(self.known.value)
        self.known = self._source = None
        source = None
        if self._changes <= _MOST_CHANGES:
            self._changes += 1
            source = _trace(self.owner)
        if source is None:
            return self.owner.state_dict()
        if isinstance(self.owner, Module):
            state = self.owner.state_dict(keep_vars=True)  # without an object more for each tensor
            return self._keep(state, state, source)
        state = self.owner.state_dict()
        self._packed = [group["params"] for group in state["param_groups"]]
        return self._keep(state, state["state"], source)

    def _keep(self, state: Any, part: Mapping[Any, Any], source: "_Source | None") -> Any:
        """Keep this part, if it has only tensors, for as long as its source has the same objects."""
        parts = [part]
        if isinstance(self.owner, Optimizer):
            parts = list(part.values())
        if source is None or not all(isinstance(each, dict) for each in parts):
            return state
        tensors = [each for inner in parts for each in inner.values()]
        is_plain = _PLAIN.issuperset(map(type, tensors)) and all(each.layout is torch.strided for each in tensors)
        if not is_plain:
            return state
        self.known = Known(next(_NUMBERS), part, tensors)
        self._source, self._trace = source, source.trace()
        return self._renew(part)

    def _renew(self, part: Mapping[Any, Any]) -> Any:
        """The whole state dict, with the present options of an optimizer."""
        if not isinstance(self.owner, Optimizer):
            return part
        groups = [
            {**group, "params": numbers} for group, numbers in zip(self.owner.param_groups, self._packed, strict=True)
        ]
        return {"state": part, "param_groups": groups}


@dataclass(frozen=True, slots=True)
class _Source:
    """The objects that make a state dict.

    trace: tells which ones there are now, by their ids.
    held: these objects, so that no other one gets the id of one of them.
    """

    trace: Callable[[], Trace]
    held: list[Any]


def _trace(owner: object) -> _Source | None:
    """The source of the state dict of this object; None where it has more than its class of torch makes."""
    if isinstance(owner, Module):
        return _trace_module(owner)
    return _trace_optimizer(owner) if isinstance(owner, Optimizer) else None


def _trace_module(root: Module) -> _Source | None:
    """The source of the state dict of this module; None where its classes or hooks add to it."""
    modules = list(root.modules())
    if any(_has_own(each, Module, name) for each in modules for name in _OWN_STATE):
        return None
    owned = [vars(each) for each in modules]
    if not all(isinstance(each.get(name), dict) for each in owned for name in _CONTAINERS):
        return None  # in TorchScript they are no dicts, or absent
    containers = [each[name] for each in owned for name in _CONTAINERS]
    hooks = [each[name] for each in owned for name in _HOOKS]
    if any(hooks):
        return None
    transient = [each["_non_persistent_buffers_set"] for each in owned]

    def trace() -> Trace:
        return [_list_ids(containers), [*chain.from_iterable(containers)], [*map(len, hooks), *map(len, transient)]]

    return _Source(trace, modules)


def _trace_optimizer(optimizer: Optimizer) -> _Source | None:
    """The source of the state dict of this optimizer; None where its class or hooks add to it."""
    if _has_own(optimizer, Optimizer, "state_dict"):  # one around another, as accelerate makes, has nothing else
        return None
    hooks = [vars(optimizer)[name] for name in _OPTIMIZER_HOOKS]
    if any(hooks):
        return None
    states, groups = optimizer.state, optimizer.param_groups

    def trace() -> Trace:
        inner = states.values()
        return [
            [*map(id, states)],
            _list_ids(inner),
            [*chain.from_iterable(inner)],
            [*map(id, chain.from_iterable([group["params"] for group in groups]))],
            [id(optimizer.state), id(optimizer.param_groups), len(groups), *map(len, hooks)],
        ]

    return _Source(trace, [*states, *chain.from_iterable([group["params"] for group in groups])])


def has_own_state(owner: object) -> bool:
    """Whether the program's own code makes the state dict of this object, not torch's of a module or optimizer."""
    kind = next((kind for kind in (Module, Optimizer) if isinstance(owner, kind)), None)
    return kind is None or _has_own(owner, kind, "state_dict")


def _has_own(owner: object, kind: type, name: str) -> bool:
    """Whether the object, or its class, has another method of this name than `kind` has."""
    return getattr(type(owner), name) is not getattr(kind, name) or name in vars(owner)


def _list_ids(containers: Iterable[Mapping[Any, Any]]) -> list[int]:
    """The ids of the values of these dicts."""
    return [*map(id, chain.from_iterable([each.values() for each in containers]))]
