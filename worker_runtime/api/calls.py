"""A collective as programs call it: of what kind, under what name, in which process set.

A call that fails before it asks anything tells the other ranks so, which wait for it or will. Otherwise they would wait
for a rank that has gone on, and their next calls of this name would meet this rank's later ones. A call that has failed
here counts as one: for the others, which are refused theirs, and where calls are counted.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives import Adasum, Allreduce, Combination
from worker_runtime.collectives.untraced import untraced
from worker_runtime.coordination.operation import Handle, Members, Operation
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError
from worker_runtime.membership.runtime import RUNTIME

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
Tensors = Sequence[torch.Tensor]


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


def gives_up(
    kind: str, complete: Callable[[Engine, Any], Any] | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Have a function of the API tell the other ranks when it fails before it has asked for its one operation.

    Args:
        kind: of the operation, which has the arguments `name` and `process_set`.
        complete: makes what programs get of what the function gives; None where that is the same.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            engine = RUNTIME.executor
            calls = engine.calls
            asked, unnamed = calls.asked, calls.unnamed
            try:
                made = function(*args, **kwargs)
                return made if complete is None else complete(engine, made)
            except BaseException as error:
                if calls.asked == asked:
                    counted = None if calls.unnamed is unnamed else calls.unnamed
                    _tell(engine, kind, _bind(signature, args, kwargs), counted, error)
                raise

        return untraced(call)

    return decorate


def begin_call(
    kind: str, name: str | None, process_set: ProcessSet = global_process_set, engine: Engine | None = None
) -> Call:
    """Find out where a collective is to run.

    Args:
        kind: what programs call it: "grouped_allreduce".
        name: the program's own for it; without one, calls are counted for each kind and set.
        process_set: in which it runs.
        engine: of the present generation; None to look for it.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: Horovod has not been initialized.
    """
    engine = engine or RUNTIME.executor
    title = kind if name is None else f"{kind} '{name}'"
    number = GLOBAL_SET
    if process_set is not global_process_set:
        check_process_set(title, process_set)
        number = process_set.find_number(title)
    return Call(engine, engine.find_members(number, title), engine.make_name(kind, name, number))


def make_allreduce(
    call: Call, tensors: Tensors, how: Combination, into: Tensors | None = None
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


def _bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """What was passed, by name, as far as it fits."""
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return kwargs


def _tell(
    engine: Engine, kind: str, arguments: dict[str, object], counted: tuple[int, str] | None, error: BaseException
) -> None:
    """Tell the others of a failure; nobody where this rank cannot make the name that they use.

    Args:
        engine: of the generation.
        kind: of the operation.
        arguments: of the call.
        counted: the set and name, where the call had counted one.
        error: of the call.
    """
    name = arguments.get("name")
    if counted is None and isinstance(name, str | None):
        number = _guess_number(engine, arguments.get("process_set", global_process_set))
        try:
            counted = number, engine.make_name(kind, name, engine.find_members(number, kind).number)
        except (ValueError, HorovodInternalError):
            return
    if counted is not None:
        engine.fail(*counted, error)


def _guess_number(engine: Engine, where: object) -> int:
    """The process set that was meant, as far as a wrong argument tells: its number, or its ranks; else the global one.

    A wrong guess is not worse than none: then the others wait for something else than this rank.
    """
    sets = engine.process_sets
    if isinstance(where, ProcessSet):
        if where.process_set_id is not None:
            return where.process_set_id
        ranks = tuple(where.ranks or ())
        return next((number for number in sets.numbers if sets.list_ranks(number) == ranks), GLOBAL_SET)
    return where if isinstance(where, int) and where in sets.numbers else GLOBAL_SET
