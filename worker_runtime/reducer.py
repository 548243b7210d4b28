"""Gradient averaging: buckets are sent while backward is still computing, and awaited before the optimizer steps.

Buckets start in one fixed order on all ranks, bucket i only after bucket i-1, whatever order backward fills them in.
A parameter that got no gradient here counts as zeros, since another rank may have one for it.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils.hooks import RemovableHandle

from worker_runtime.collectives import AVERAGE, Combination, allreduce_async
from worker_runtime.core.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Item, plan_buckets
from worker_runtime.errors import ExcessBackwardError
from worker_runtime.executor import Executor, Handle


class _Entry:
    """One parameter: how many backward passes it still waits for in this step."""

    def __init__(self, parameter: torch.Tensor, name: str, passes: int) -> None:
        self.parameter = parameter
        self.name = name
        self.passes_left = passes

    @property
    def is_ready(self) -> bool:
        return self.passes_left <= 0


class _Bucket:
    """Gradients of one dtype that travel as one message."""

    def __init__(self, entries: Sequence[_Entry], name: str) -> None:
        self._entries = entries
        self._name = name
        self._handle: Handle[torch.Tensor] | None = None

    @property
    def is_ready(self) -> bool:
        return all(entry.is_ready for entry in self._entries)

    def start(self, executor: Executor, how: Combination) -> None:
        """Copy the gradients into one flat tensor and send it."""
        parts = [entry.parameter for entry in self._entries]
        flat = torch.cat([_make_dense(part).reshape(-1) for part in parts])
        self._handle = allreduce_async(executor, flat, how, self._name, into=flat)

    def finish(self, *, keep: bool) -> None:
        """Wait; with `keep`, write the result into the parameters' gradients."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        flat = handle.wait()
        if not keep:
            return
        offset = 0
        for entry in self._entries:
            parameter = entry.parameter
            part = flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
            if parameter.grad is not None:
                parameter.grad.detach().copy_(part)
            elif parameter.requires_grad:
                parameter.grad = part.clone()

    def drop(self) -> None:
        self._handle = None


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters over all ranks, once per step.

    Args:
        parameters: named, in the same order on all ranks; those that require no gradient are left out until they do.
        get_executor: the executor of the present generation; asked anew for each step.
        how: how gradients are combined.
        passes: backward passes per step; their gradients are summed locally before they are sent.
        bounds: of the first and of the other buckets, in bytes.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        get_executor: Callable[[], Executor],
        how: Combination = AVERAGE,
        passes: int = 1,
        bounds: tuple[int, int] = (FIRST_BUCKET_BYTES, BUCKET_BYTES),
    ) -> None:
        self.passes = passes
        self._get_executor = get_executor
        self._how = how
        self._bounds = bounds
        self._entries: dict[torch.Tensor, _Entry] = {}
        self._buckets: list[_Bucket] = []
        self._started = 0  # that many buckets, the first ones, are on their way
        self._hooks: list[RemovableHandle] = []
        self.adopt(parameters)

    @property
    def is_pending(self) -> bool:
        """Whether gradients of this step are complete and have not been synchronized.

        It does not depend on how far the transfer is, so that all ranks agree when all have finished backward.
        """
        return any(entry.is_ready for entry in self._entries.values())

    def adopt(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take in those of `parameters` that require gradients and are new: added, or unfrozen, since the last step."""
        new = [
            _Entry(parameter, name, self.passes)
            for name, parameter in parameters
            if parameter.requires_grad and parameter not in self._entries
        ]
        reducer = weakref.ref(self)
        for entry in new:
            self._entries[entry.parameter] = entry
            self._hooks.append(entry.parameter.register_post_accumulate_grad_hook(_make_hook(reducer, entry)))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        items = [
            Item(
                entry.parameter.numel() * entry.parameter.element_size(),
                (entry.parameter.dtype, entry.parameter.device),
            )
            for entry in new
        ]
        for indices in plan_buckets(items, *self._bounds):
            self._buckets.append(_Bucket([new[index] for index in indices], f"gradients.{len(self._buckets)}"))

    def synchronize(self) -> None:
        """Wait until every parameter's gradient is the reduced one.

        Raises:
            HorovodInternalError: a reduction failed; the gradients are then undefined.
        """
        if self._get_executor().size > 1:
            with self._ends_step():
                self._start_buckets(everything=True)
                for bucket in self._buckets:
                    bucket.finish(keep=True)

    def discard(self) -> None:
        """Complete the reductions of this step on all ranks, and leave the gradients as they are.

        Does nothing unless this step's gradients are complete; all ranks must call it at the same place.
        """
        if self.is_pending:
            with self._ends_step():
                self._start_buckets(everything=True)
                for bucket in self._buckets:
                    bucket.finish(keep=False)

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes per step, from the next step on."""
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        """Forget the present step: its reductions have ended, or will never be waited for."""
        for bucket in self._buckets:
            bucket.drop()
        self._started = 0
        for entry in self._entries.values():
            entry.passes_left = self.passes

    def detach(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def record_gradient(self, entry: _Entry) -> None:
        """A backward pass has accumulated into the gradient of `entry`.

        Raises:
            ExcessBackwardError: there were more passes than one step has.
            ValueError: the gradient is sparse.
        """
        executor = self._get_executor()
        if executor.size == 1:
            return
        if entry.is_ready:
            raise ExcessBackwardError(entry.name, self.passes)
        gradient = entry.parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            raise ValueError(f"the gradient of {entry.name} is sparse, which is not supported; use sparse=False")
        entry.passes_left -= 1
        self._start_buckets(everything=False)

    def _start_buckets(self, *, everything: bool) -> None:
        executor = self._get_executor()
        while self._started < len(self._buckets):
            bucket = self._buckets[self._started]
            if not (everything or bucket.is_ready):
                return
            bucket.start(executor, self._how)
            self._started += 1

    @contextmanager
    def _ends_step(self) -> Iterator[None]:
        """Whatever happens, the next step begins anew."""
        try:
            yield
        finally:
            self.reset()


def _make_hook(reducer: weakref.ref[GradientReducer], entry: _Entry) -> Callable[[torch.Tensor], None]:
    """A hook that does not keep its reducer alive: an optimizer that was dropped no longer averages."""

    def hook(_: torch.Tensor) -> None:
        target = reducer()
        if target is not None:
            target.record_gradient(entry)

    return hook


def _make_dense(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient.detach()
