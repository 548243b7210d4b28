"""A collective as programs call it: of what kind, under what name, in which process set.

The framework packages turn each call into a `Call`, and that with their tensors into an operation.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives import Adasum, Allreduce, Combination
from worker_runtime.coordination.operation import Handle, Members, Operation
from worker_runtime.coordination.ordering.questions import Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError
from worker_runtime.membership.runtime import RUNTIME


class Call(NamedTuple):
    """Where a collective runs, and under what name.

    executor: of the present generation.
    among: the members of the process set.
    name: as it travels, the kind first: "allreduce.loss".
    """

    executor: Engine
    among: Members
    name: str

    def preparing(self) -> AbstractContextManager[None]:
        """While what is to be asked for is made: where that fails, the other ranks are told so."""
        return self.executor.preparing(self.among.number, self.name)

    def derive(self, suffix: str) -> "Call":
        """A call that follows from this one, such as its gradient's, under a name made from this one's."""
        return Call(self.executor, self.among, f"{self.name}.{suffix}")


def begin_call(kind: str, name: str | None, process_set: ProcessSet = global_process_set) -> Call:
    """Find out where a collective is to run.

    Args:
        kind: what programs call it: "grouped_allreduce".
        name: the program's own for it; without one, calls are counted for each kind and set.
        process_set: in which it runs.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: Horovod has not been initialized.
    """
    title = kind if name is None else f"{kind} '{name}'"
    check_process_set(title, process_set)
    number = process_set.find_number(title)
    executor = RUNTIME.executor
    return Call(executor, executor.find_members(number, title), executor.make_name(kind, name, number))


def make_allreduce(
    call: Call, tensors: Sequence[torch.Tensor], how: Combination, into: Sequence[torch.Tensor] | None = None
) -> Operation[list[torch.Tensor]]:
    """The operation that combines tensors; see `Allreduce` and `Adasum`.

    Raises:
        ValueError: what the operation says of its tensors.
    """
    if how.reduction is Reduction.ADASUM:
        return Adasum(tensors, how, call.among, call.name, into)
    return Allreduce(tensors, how, call.among, call.name, into)


def await_all(engine: Engine, handles: Sequence[Handle[object]]) -> None:
    """Wait for all operations, also after one has failed, so that none stays behind in flight.

    Args:
        engine: that runs them.
        handles: of the operations.

    Raises:
        HorovodInternalError: the first one's failure.
    """
    failures = []
    for handle in handles:
        try:
            engine.wait(handle)
        except HorovodInternalError as error:
            failures.append(error)
    if failures:
        raise failures[0]
