"""Whose gradients an optimizer needs at present: those of its parameters that require any, or were frozen with one."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import torch

from worker_runtime.collectives.untraced import untraced
from worker_runtime.reduction.bucket import Entry

NamedParameters = Iterable[tuple[str, torch.Tensor]]


class Recorder(Protocol):
    """What gradients are reported to."""

    def record_gradient(self, entry: Entry) -> None:
        """A backward pass has accumulated into the gradient of `entry`."""

    def supersede(self, name: str) -> None:
        """A newer recorder has taken the parameter of this name over: let go of all, and step no more."""


class TrackedParameters:
    """The entries of an optimizer's parameters, and the hooks that report their gradients.

    One optimizer tracks a parameter: the newest takes it over from the others.

    Args:
        list_parameters: those of the optimizer at present, named.
        groups: the group of some of them; looked up when one is new.
        recorder: gradients are reported to it as long as it lives: an optimizer that was dropped no longer averages.
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
        self._made = time.monotonic_ns()
        self.entries: list[Entry] = []
        self._parameters: frozenset[torch.Tensor] = frozenset()  # of the entries

    def update(self) -> bool:
        """Take in what was added or unfrozen, let go of what is gone, or frozen without a gradient; whether any was."""
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
        """Take note of parameters that have another dtype, device, shape or memory format; whether any have."""
        has_changed = False
        for entry in self.entries:
            form = entry.find_form()
            if form != entry.form:
                entry.form = form
                has_changed = True
        return has_changed

    def detach(self) -> None:
        """Leave the parameters alone from now on."""
        for entry in self.entries:
            entry.detach()

    def _track(self, name: str, parameter: torch.Tensor) -> Entry:
        entry = Entry(parameter, name, self._groups.get(parameter))
        hook = _Hook(_report, self._recorder, weakref.ref(entry))
        hook.made = self._made
        others: dict[int, object] = parameter._post_accumulate_grad_hooks or {}  # noqa: SLF001 - torch's only way to ask
        for other in list(others.values()):
            if isinstance(other, _Hook):
                min(hook, other, key=lambda one: one.made).supersede()
        entry.hook = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return entry


class _Hook(partial[None]):
    """A parameter's hook, as a partial called faster than an object with a method of its own.

    It keeps nothing alive: torch holds it where the garbage collector cannot see it.

    made: when its optimizer began to track parameters.
    """

    made: int

    def supersede(self) -> None:
        """Another optimizer has the parameter now."""
        recorder, entry = (find() for find in self.args)
        if recorder is not None and entry is not None:
            recorder.supersede(entry.name)


@untraced
def _report(
    find_recorder: Callable[[], Recorder | None], find_entry: Callable[[], Entry | None], _: torch.Tensor
) -> None:
    """A backward pass has accumulated into the parameter's gradient."""
    recorder, entry = find_recorder(), find_entry()
    if recorder is not None and entry is not None:
        recorder.record_gradient(entry)
