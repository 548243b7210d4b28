"""The averaging of MXNet gradients in their own memory, by the common reducer.

MXNet computes in the background: backward returns immediately, and the engine computes the gradients later. So this
module waits for the gradients one by one in the reverse of the forward order, in which they roughly become ready.
Whenever a bucket is complete it is submitted, while the engine continues.

The reducer works on tensors. For each array it has a stand-in: a tensor of the array's shape and dtype without memory,
whose gradient in a step is a view of the array. The reducer does everything else: names, plans, checks across ranks,
process sets, groups, compression, and changes of the generation.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import mxnet as mx
import torch

from worker_runtime.api.process_set import ProcessSet
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.mxnet.arrays import (
    DTYPES,
    await_writable,
    check_array,
    copy_back,
    find_address,
    to_host,
    view_for_reading,
)
from worker_runtime.mxnet.compression import Compression, TensorCompressor
from worker_runtime.mxnet.mxnet_errors import raises_mxnet_errors
from worker_runtime.reduction import GradientReducer, Settings
from worker_runtime.reduction.bucket import Entry
from worker_runtime.reduction.bucket_plan import PlanInputs
from worker_runtime.reduction.communicator import complete_step_alone
from worker_runtime.reduction.finite import make_finite_check
from worker_runtime.reduction.replicas import ReplicaCheck, read_interval
from worker_runtime.reduction.settings import Compressor


class Gradient(NamedTuple):
    """One gradient.

    name: its name, the same on all ranks.
    array: a dense array, which the average replaces.
    """

    name: str
    array: mx.nd.NDArray


class _StandIn:
    """The stand-in of an array for the reducer: an expanded zero, which has the array's shape and no memory.

    Args:
        array: a dense floating-point array.
        tensor: the stand-in tensor.
    """

    __slots__ = ("_view", "array", "tensor")

    def __init__(self, array: mx.nd.NDArray, tensor: torch.Tensor) -> None:
        self.array = array
        self.tensor = tensor
        self._view: torch.Tensor | None = None

    def await_gradient(self) -> torch.Tensor:
        """Wait until the array is computed, and make a view of it the stand-in's gradient."""
        self.array.wait_to_read()
        view = self._view
        # The array moves when oneDNN changes its layout.
        if view is None or view.data_ptr() != find_address(self.array):
            view = self._view = view_for_reading(self.array)
        self.tensor.grad = view
        return view

    def forget_view(self) -> None:
        """Create a new view next time."""
        self._view = None


class ArrayReducer:
    """Averages gradients over the ranks of a process set, once per step.

    Args:
        settings: how gradients are combined and sent.
        process_set: the ranks. Other ranks may call `reduce` too, and keep their gradients.
        group_count: the number of groups in which gradients are reduced together; 0 for buckets by size.
        label: distinguishes reducers; those of one label are matched by the order of their creation.
        list_weights: returns this rank's weights to compare with the other ranks', with names for the user.
        show: turns a gradient's name into the name that the user reads.

    Raises:
        HorovodInternalError: Horovod has not been initialized.
    """

    def __init__(
        self,
        settings: Settings,
        process_set: ProcessSet,
        group_count: int = 0,
        label: str = "",
        *,
        list_weights: Callable[[], Sequence[tuple[str, mx.nd.NDArray]]] = list,
        show: Callable[[str], str] = str,
    ) -> None:
        self._group_count = group_count
        self._stand_ins: dict[str, _StandIn] = {}
        self._named: list[tuple[str, torch.Tensor]] = []
        self._groups: dict[torch.Tensor, int] = {}
        self._resumed: tuple[Engine, PlanInputs] | None = None
        self._process_set = process_set
        finite = make_finite_check(os.environ, show=show)
        self._must_look = finite is not None
        self._reducer = GradientReducer(
            lambda: self._named,
            lambda: RUNTIME.engine,
            settings,
            groups=self._groups,
            find_set=self._find_set,
            label=label,
            check=_make_check(list_weights),
            finite=finite,
        )

    @raises_mxnet_errors
    def reduce(self, gradients: Sequence[Gradient]) -> None:
        """Average the gradients, and count the step; operations that are enqueued afterwards see the averages.

        Call it in a context of `preparing`. If the reducer `is_idle`, the gradients do not matter.

        Args:
            gradients: the gradients, the same on all ranks, in the order in which forward uses their parameters.
                Integer arrays are ignored.

        Raises:
            ValueError: a gradient cannot be communicated; see `check_array`.
            HorovodInternalError: the ranks have different gradients, or a reduction failed; the gradients are then
                undefined.
            MXNetError: the MXNet operation that computes a gradient failed.
        """
        if self.is_idle:
            complete_step_alone(RUNTIME.engine, self._find_set)
            return
        arrays = [gradient.array for gradient in gradients]
        host_copies = list(map(to_host, arrays))
        self._reduce(
            self._enter([(name, host_copy) for (name, _), host_copy in zip(gradients, host_copies, strict=True)])
        )
        for host_copy, array in zip(host_copies, arrays, strict=True):
            copy_back(host_copy, array)

    def settle(self, scale: float | None) -> None:
        """Report which of the ranks' own gradients were not finite; call it after `reduce`.

        Args:
            scale: the factor of a scaled loss; None without one.

        Raises:
            NotFiniteError: one was not finite, and the user wants an error.
        """
        self._reducer.settle(scale)

    @property
    def is_idle(self) -> bool:
        """Whether gradients stay as they are: this rank is alone, and nobody wants to know whether they are finite."""
        return not self._must_look and is_alone(self._process_set)

    def preparing(self) -> AbstractContextManager[None]:
        """A context in which gradients are computed for `reduce`: its error makes the other ranks' step fail too."""
        return self._reducer.preparing()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """A context before `preparing`: its error makes the other ranks' step fail too. Without an error it is free."""
        try:
            yield
        except BaseException:
            with self.preparing():
                raise

    @property
    def plan_inputs(self) -> PlanInputs:
        """See `GradientReducer.plan_inputs`."""
        return self._find_resumed() or self._reducer.plan_inputs

    def resume(self, inputs: PlanInputs) -> None:
        """See `GradientReducer.resume`; in the next step, which is the first one to know the gradients."""
        self._resumed = RUNTIME.engine, inputs

    def _find_resumed(self) -> PlanInputs | None:
        """The inputs of another job, until the next step. None with new workers, who do not know them."""
        if self._resumed is None or self._resumed[0] is not RUNTIME.engine:
            return None
        return self._resumed[1]

    @torch.no_grad()
    def _reduce(self, stand_ins: Sequence[_StandIn]) -> None:
        inputs, self._resumed = self._find_resumed(), None
        if inputs is not None:
            self._reducer.resume(inputs)

        entries: dict[torch.Tensor, Entry] = {entry.parameter: entry for entry in self._reducer.entries}
        views: list[tuple[torch.Tensor, torch.Tensor]] = []
        ready: list[mx.nd.NDArray] = []  # arrays that enqueued operations may still read

        try:
            for stand_in in reversed(stand_ins):
                views.append((stand_in.tensor, stand_in.await_gradient()))
                ready.append(stand_in.array)
                entry = entries.get(stand_in.tensor)
                if entry is None:
                    continue
                if self._reducer.completes_bucket(entry):
                    await_writable(ready)
                    ready.clear()
                self._reducer.record_gradient(entry)
            await_writable(ready)
            self._reducer.synchronize()
            for tensor, view in views:
                if tensor.grad is not None and tensor.grad is not view:
                    view.copy_(tensor.grad)
        except BaseException:
            # What comes next is another gradient: the reducer distinguishes them by the tensor.
            for stand_in in stand_ins:
                stand_in.forget_view()
            raise
        finally:
            for tensor, _ in views:
                tensor.grad = None

    def find_any(self, title: str, names: Sequence[str], flags: Sequence[bool]) -> list[bool]:
        """Combine flags over the ranks by or.

        Args:
            title: the name of the exchange, for messages.
            names: the names of the flags, the same on all ranks.
            flags: this rank's flag of each name.

        Raises:
            HorovodInternalError: the ranks have different names, or the exchange failed.
        """
        note = f"{len(names)} gradients from '{names[0]}' to '{names[-1]}'" if names else "no gradients"
        share = self._reducer.average(torch.tensor(flags, dtype=torch.float32, device="cpu"), note, title)
        return [bool(value) for value in share > 0]

    def _find_set(self) -> int:
        return _find_number(self._process_set)

    def _enter(self, gradients: Sequence[tuple[str, mx.nd.NDArray]]) -> list[_StandIn]:
        """The stand-ins of the gradients, which are those of the last step if they fit."""
        known = self._stand_ins
        found = {name: _find_stand_in(known.get(name), array) for name, array in gradients}
        self._stand_ins = {name: stand_in for name, stand_in in found.items() if stand_in is not None}
        named = [(name, stand_in.tensor) for name, stand_in in self._stand_ins.items()]
        if len(named) != len(self._named) or any(
            new is not old for (_, new), (_, old) in zip(named, self._named, strict=True)
        ):
            self._named = named
            self._groups.clear()
            if self._group_count:
                places = [place * self._group_count // len(named) for place in range(len(named))]
                self._groups.update(zip((tensor for _, tensor in named), places, strict=True))
        return list(self._stand_ins.values())


def make_settings(predivide_factor: float, compression: Compressor = Compression.none) -> Settings:
    """The settings of an average in place.

    Args:
        predivide_factor: gradients are divided by it before the sum and multiplied by it after.
        compression: the compressor.
    """
    is_own = compression not in (Compression.none, Compression.fp16)
    return Settings(
        how=Combination(Reduction.AVERAGE, 1.0 / predivide_factor, predivide_factor),
        wire_dtype=torch.float16 if compression is Compression.fp16 else None,
        compressor=TensorCompressor(compression) if is_own else None,
        in_place=True,
    )


def _make_check(list_weights: Callable[[], Sequence[tuple[str, mx.nd.NDArray]]]) -> ReplicaCheck | None:
    """The comparison of the ranks' weights, where the user wants it."""
    interval = read_interval(os.environ)
    if not interval:
        return None
    return ReplicaCheck(lambda: [(name, view_for_reading(array)) for name, array in list_weights()], interval)


def is_alone(process_set: ProcessSet) -> bool:
    """Whether this rank averages with no other: it is not in the set, or its only member.

    Raises:
        ValueError: the set is not registered.
        HorovodInternalError: Horovod has not been initialized.
    """
    number = _find_number(process_set)
    engine = RUNTIME.engine
    ranks = engine.process_sets.list_ranks(number)
    return engine.rank not in ranks or len(ranks) == 1


def _find_number(process_set: ProcessSet) -> int:
    """The id of a set. A set that was unpickled with an optimizer gets that of the registered set of its ranks."""
    process_set.adopt(RUNTIME.engine)
    return process_set.find_number("DistributedOptimizer")


def _find_stand_in(known: _StandIn | None, array: mx.nd.NDArray) -> _StandIn | None:
    """A stand-in for the array; None if its dtype has no gradients."""
    if known is not None and known.array is array:
        return known
    check_array(array)
    dtype = DTYPES[array.dtype]
    if not dtype.is_floating_point:
        return None
    if known is not None and known.tensor.dtype == dtype and known.tensor.shape == array.shape:
        return _StandIn(array, known.tensor)
    zero = torch.zeros((), dtype=dtype, device="cpu")
    return _StandIn(array, zero.expand(array.shape).requires_grad_())
