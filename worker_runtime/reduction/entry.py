"""One parameter of an optimizer, as far as the present step has come with its gradient."""

from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from worker_runtime.reduction.bucket import Bucket


Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


class Entry:
    """A parameter and its state within the step.

    parameter, name: whose gradient.
    group: of those that travel together; None for any.
    passes_left: how many backward passes are to come before its gradient is complete.
    bucket: with which its gradient travels, while that is known during backward.
    kept: the local gradient, until the step is committed; also tells whether the user has put another in its place.
    version: of the gradient when it was complete, or taken; what is done in place, by autograd too, counts it up.
    form: of the parameter, when a step last began: dtype, device, shape and strides; None before the first one.
    """

    __slots__ = (
        "__weakref__",
        "bucket",
        "form",
        "group",
        "hook",
        "kept",
        "name",
        "parameter",
        "passes_left",
        "version",
    )

    def __init__(self, parameter: torch.Tensor, name: str, passes: int, group: int | None = None) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.passes_left = passes
        self.bucket: Bucket | None = None
        self.kept: torch.Tensor | None = None
        self.version = 0
        self.form: Form | None = None  # a lazy module's parameter has none before its first forward pass
        self.hook: RemovableHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its gradient is complete."""
        return self.passes_left <= 0

    def find_form(self) -> Form:
        """The parameter's present form, which a program may change at any time: `model.double()`."""
        parameter = self.parameter
        return parameter.dtype, parameter.device, parameter.shape, parameter.stride()

    def note_version(self) -> None:
        """The gradient is complete, or was taken."""
        gradient = self.parameter.grad
        self.version = 0 if gradient is None else gradient._version  # noqa: SLF001 - torch's only way to tell

    def has_changed(self) -> bool:
        """Whether the gradient that was taken is another one now, or was written to."""
        gradient = self.parameter.grad
        return gradient is not self.kept or (gradient is not None and gradient._version != self.version)  # noqa: SLF001 - as above

    def detach(self) -> None:
        """Leave the parameter alone from now on."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None

    def find_sparse_dims(self) -> int:
        """How many sparse dimensions the present gradient has; 0 where it is dense or there is none."""
        gradient = self.parameter.grad
        return gradient.sparse_dim() if gradient is not None and gradient.layout is torch.sparse_coo else 0
