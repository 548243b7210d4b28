"""The parameters whose gradients an optimizer reduces: those that require a gradient, or were frozen with one."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch.nn.parameter import is_lazy

from worker_runtime.collectives.untraced import untraced
from worker_runtime.errors import ShapelessParameterError
from worker_runtime.reduction.bucket import Entry

NamedParameters = Iterable[tuple[str, torch.Tensor]]


class Recorder(Protocol):
    """Receives the reports of the parameters' hooks."""

    def record_gradient(self, entry: Entry) -> None:
        """Called after a backward pass has accumulated into the gradient of `entry`."""

    def supersede(self, name: str) -> None:
        """Called when a newer recorder has taken over the parameter of this name: detach, and refuse to step."""


class TrackedParameters:
    """The entries of an optimizer's parameters, and the hooks that report their gradients.

    Only one optimizer tracks a parameter: the newest takes it over from the others.

    Args:
        list_parameters: returns the optimizer's present parameters with their names.
        groups: the group of some parameters; looked up when a parameter is new.
        recorder: receives the reports. It is held weakly, so that an optimizer that was dropped no longer averages.
    """

    def __init__(
        self,
        list_parameters: Callable[[], NamedParameters],
        groups: Mapping[torch.Tensor, int],
        recorder: Recorder,
    ) -> None:
        self._list_parameters = list_parameters
        self._groups = groups
        self._recorder = weakref.ref(recorder)
        self._created = time.monotonic_ns()
        self.entries: list[Entry] = []
        self._parameters: frozenset[torch.Tensor] = frozenset()  # of the entries

    def update(self) -> bool:
        """Add new and unfrozen parameters, and drop removed and frozen ones; return whether anything changed.

        Raises:
            ShapelessParameterError: a parameter has no shape yet.
        """
        listed = [
            (name, parameter)
            for name, parameter in self._list_parameters()
            # An optimizer steps with the gradient of a parameter that has been frozen since backward.
            if parameter.requires_grad or (parameter.grad is not None and parameter in self._parameters)
        ]

        present = self.entries
        if len(listed) == len(present) and all(
            parameter is entry.parameter for (_, parameter), entry in zip(listed, present, strict=True)
        ):
            return False

        known = {entry.parameter: entry for entry in present}
        self.entries = [
            known.pop(parameter) if parameter in known else self._track(name, parameter) for name, parameter in listed
        ]
        for entry in known.values():
            entry.detach()
        self._parameters = frozenset(parameter for _, parameter in listed)
        return True

    def update_forms(self) -> bool:
        """Update the entries' forms (dtype, device, shape, strides); return whether one changed."""
        has_changed = False
        for entry in self.entries:
            form = entry.find_form()
            if form != entry.form:
                entry.form = form
                has_changed = True
        return has_changed

    def list_frozen(self) -> list[torch.Tensor]:
        """The optimizer's parameters that have no entry, and a shape."""
        return [each for _, each in self._list_parameters() if each not in self._parameters and not is_lazy(each)]

    def detach(self) -> None:
        """Remove the hooks from all parameters."""
        for entry in self.entries:
            entry.detach()

    def _track(self, name: str, parameter: torch.Tensor) -> Entry:
        if is_lazy(parameter):
            raise ShapelessParameterError(name)
        entry = Entry(parameter, name, self._groups.get(parameter))
        hook = _Hook(_report, self._recorder, weakref.ref(entry))
        hook.created = self._created
        others: dict[int, object] = parameter._post_accumulate_grad_hooks or {}  # noqa: SLF001 - torch has no public way
        for other in list(others.values()):
            if isinstance(other, _Hook):
                min(hook, other, key=lambda one: one.created).supersede()
        entry.hook = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return entry


class _Hook(partial[None]):
    """A parameter's hook. A partial is called faster than an object with a `__call__` method.

    Its arguments are weak references: torch holds hooks where the garbage collector cannot see them.

    created: when its optimizer was created, in nanoseconds.
    """

    created: int

    def supersede(self) -> None:
        """Report that another optimizer has taken over the parameter."""
        recorder, entry = (find() for find in self.args)
        if recorder is not None and entry is not None:
            recorder.supersede(entry.name)


@untraced
def _report(
    find_recorder: Callable[[], Recorder | None], find_entry: Callable[[], Entry | None], _: torch.Tensor
) -> None:
    """Report that a backward pass has accumulated into the parameter's gradient."""
    recorder, entry = find_recorder(), find_entry()
    if recorder is not None and entry is not None:
        recorder.record_gradient(entry)
