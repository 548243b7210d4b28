"""The collectives as programs call them, once for all frameworks.

A framework's package declares the arguments of each function, and returns them as `Arguments`. This module runs the
collective with them in the function's `Form`: `allreduce` waits and returns new arrays, `allreduce_` overwrites the
given arrays, and `allreduce_async` returns a handle.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, get_args

import torch
from torch.autograd.graph import increment_version

from worker_runtime.api.failed_calls import bind, report_failure
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.allgather import Allgather, Gathered
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.alltoall import Alltoall
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.reducescatter import Reducescatter
from worker_runtime.collectives.untraced import untraced
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import NotInitializedError, WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Form:
    """What a function of the API does.

    kind: the collective: "allreduce".
    grouped: it takes a list of arrays, and runs them as one operation.
    in_place: it overwrites the given arrays with the results; otherwise the results are new arrays.
    waits: it returns the results; otherwise a handle.
    """

    kind: str
    grouped: bool = False
    in_place: bool = False
    waits: bool = True

    @property
    def title(self) -> str:
        """The first part of the operation's name: "grouped_allreduce"."""
        if self.grouped:
            return f"grouped_{self.kind}"
        return self.kind

    @property
    def name(self) -> str:
        """The function's name: "grouped_allreduce_async_"."""
        return f"{self.title}{'' if self.waits else '_async'}{'_' if self.in_place else ''}"


class Call(NamedTuple):
    """Where a collective runs, and its name.

    engine: the engine of the present generation.
    among: the members of the process set.
    name: the full name, the same on all ranks: "allreduce.loss".
    """

    engine: Engine
    among: Members
    name: str

    def preparing(self) -> AbstractContextManager[None]:
        """A context for the preparation of the operation: its errors are also reported to the other ranks."""
        return self.engine.preparing(self.among.number, self.name)

    def derive(self, suffix: str) -> "Call":
        """A call that belongs to this one, such as that of its gradient, with the suffix added to the name."""
        return Call(self.engine, self.among, f"{self.name}.{suffix}")


Finish = Callable[[Sequence[Any]], object]
Differentiate = Callable[[Form, Call, Any, Tensors], Tensors]
Trace = Callable[[str, Any], Any]

take_first: Callable[[Sequence[Any]], Any] = itemgetter(0)  # the result of a call of one array


class Arrays(Protocol):
    """Converts a framework's arrays to tensors, and tensors to arrays.

    takes_none: an empty group returns immediately; otherwise it is an error.
    """

    takes_none: bool

    def read(self, arrays: Sequence[Any], *, in_place: bool) -> Tensors:
        """Tensors with the arrays' values; in place, tensors that share the arrays' memory, for the result."""

    def wrap(self, results: Tensors, arrays: Sequence[Any], *, in_place: bool) -> Sequence[Any]:
        """New arrays with the results, like the given arrays; in place, the given arrays."""


class Arguments(NamedTuple, Generic[ResultT]):
    """The arguments of a collective.

    given: the arrays.
    name: the name that the program gives; without one, calls of each kind and set are numbered.
    process_set: the ranks that take part.
    settings: the collective's other arguments: a Combination, a root, or splits.
    finish: turns the list of resulting arrays into the function's return value.
    arrays: converts the arrays to tensors; None where they are tensors.
    """

    given: Sequence[Any]
    name: str | None
    process_set: ProcessSet
    settings: Any
    finish: Callable[[Sequence[Any]], ResultT]
    arrays: Arrays | None = None


def collective(
    form: Form, differentiate: Differentiate | None = None, trace: Trace | None = None
) -> Callable[[Callable[P, Arguments[ResultT]]], Callable[P, ResultT]]:
    """Decorate a function that returns arguments: the result runs the collective and waits for it.

    Args:
        form: what the function does.
        differentiate: runs the collective where a tensor requires a gradient; None for a function in place.
        trace: adds the collective to the graph of torch.compile; None breaks the graph instead.
    """

    def decorate(build: Callable[P, Arguments[ResultT]]) -> Callable[P, ResultT]:
        result = get_args(inspect.signature(build).return_annotation)[0]
        return _Function(form, None, differentiate).define(build, result, trace=trace)

    return decorate


def overwriting(form: Form) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Make the in-place form of a function that `collective` has decorated."""

    def derive(like: Callable[P, ResultT]) -> Callable[P, ResultT]:
        text = f"`{like.__name__}` in place: overwrites its arguments with the results, and returns them."
        return _Function(form).define(like, inspect.signature(like).return_annotation, text)

    return derive


def asynchronous(form: Form, finish: Finish | None = None) -> Callable[[Callable[P, object]], Callable[P, int]]:
    """Make the asynchronous form of a function, which returns a handle.

    The function returns arguments, or is one that `collective` or `overwriting` returned; then its docstring is
    extended.

    Args:
        form: what the new function does.
        finish: turns the list of resulting arrays into the return value of `synchronize`; None for `Arguments.finish`.
    """

    def derive(like: Callable[P, object]) -> Callable[P, int]:
        text = (
            f"Start `{replace(form, waits=True).name}`, and return a handle for `poll` and `synchronize`; not "
            "differentiable. `synchronize` returns the result. Do not change the arrays before that; in place, do not "
            "read them either."
        )
        has_own_text = inspect.unwrap(like) is like  # it returns arguments
        return _Function(form, finish).define(like, int, "" if has_own_text else text)

    return derive


def reports_failure(
    title: str, complete: Callable[[Engine, Any], Any] | None = None, trace: Trace | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Decorate a function of the API, so that its error is reported to the other ranks if it submits no operation.

    Args:
        title: the first part of the operation's name; the function has arguments `name` and `process_set`.
        complete: turns the function's result into the return value; None where it is the same.
        trace: does this while torch.compile traces.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            if trace is not None and torch.compiler.is_compiling():
                return trace(title, function(*args, **kwargs))  # type: ignore[no-any-return]  # what the function gives
            world = RUNTIME.world
            if world is None:
                raise NotInitializedError
            engine, calls = world.engine, world.engine.calls
            asked, unnamed = calls.asked, calls.unnamed

            try:
                made = function(*args, **kwargs)
                return made if complete is None else complete(engine, made)
            except BaseException as error:
                if calls.asked == asked:
                    counted = None
                    if calls.unnamed is not unnamed:
                        counted = calls.unnamed
                    report_failure(engine, title, bind(signature, args, kwargs), counted, error)
                raise

        if trace is None:
            return untraced(call)
        return call

    return decorate


def begin_call(
    kind: str, name: str | None, process_set: ProcessSet = global_process_set, engine: Engine | None = None
) -> Call:
    """Look up the members of a set, and choose the full name of a collective.

    Args:
        kind: the function's name: "grouped_allreduce".
        name: the name that the program gives; without one, calls of each kind and set are numbered.
        process_set: the ranks that take part.
        engine: the engine of the present generation, if the caller has it.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: Horovod has not been initialized.
    """
    engine = engine or RUNTIME.engine
    if process_set is global_process_set:
        return Call(engine, engine.find_members(GLOBAL_SET, kind), engine.make_name(kind, name))
    title = kind if name is None else f"{kind} '{name}'"
    check_process_set(title, process_set)
    number = process_set.find_number(title)
    return Call(engine, engine.find_members(number, title), engine.make_name(kind, name, number))


def make_allreduce(
    call: Call, tensors: Tensors, how: Combination, into: Tensors | None = None
) -> Operation[list[torch.Tensor]]:
    """The operation that reduces tensors: an `Allreduce` or an `Adasum`; see there for its errors."""
    if how.reduction is Reduction.ADASUM:
        return Adasum(tensors, how, call.among, call.name, into)
    return Allreduce(tensors, how, call.among, call.name, into)


_OPERATIONS: dict[str, Callable[[Call, Tensors, Any, Tensors | None], Operation[Any]]] = {
    "allreduce": make_allreduce,
    "allgather": lambda call, tensors, _, __: Allgather(tensors, call.among, call.name),
    "broadcast": lambda call, tensors, root, into: Broadcast(tensors, root, call.among, call.name, into),
    "alltoall": lambda call, tensors, splits, _: Alltoall(tensors[0], splits, call.among, call.name),
    "reducescatter": lambda call, tensors, how, _: Reducescatter(tensors, how, call.among, call.name),
}


class _Function:
    """A function of the API, which runs a collective.

    Args:
        form: what it does.
        finish: for a function that does not wait; see `asynchronous`.
        differentiate: see `collective`.
    """

    def __init__(self, form: Form, finish: Finish | None = None, differentiate: Differentiate | None = None) -> None:
        self._form = form
        self._title = form.title
        self._finish = finish
        self._differentiate = differentiate
        self._make_operation = _OPERATIONS[form.kind]
        self._gathers = form.kind == "allgather"

    def define(
        self, like: Callable[..., object], returns: object, text: str = "", trace: Trace | None = None
    ) -> Callable[..., Any]:
        """Return the function with the arguments of `like`; its docstring is `text` followed by that of `like`."""
        build = inspect.unwrap(like)
        made: Any = reports_failure(self._title, self._run, trace)(build)
        made.__name__ = made.__qualname__ = self._form.name
        made.__doc__ = f"{text}\n\n{inspect.getdoc(like)}" if text else build.__doc__
        made.__annotations__ = build.__annotations__ | {"return": returns}
        made.__signature__ = inspect.signature(build).replace(return_annotation=returns)
        return made  # type: ignore[no-any-return]  # a function with attributes

    def _run(self, engine: Engine, arguments: Arguments[Any]) -> Any:
        given, name, process_set, settings, finish, arrays = arguments
        form = self._form
        if form.grouped:
            given = _list_group(self._title, given)
            if not given and arrays is not None and arrays.takes_none and form.waits:
                return arguments.given
        call = begin_call(self._title, name, process_set, engine)
        tensors = given
        if arrays is not None:
            tensors = arrays.read(given, in_place=form.in_place)

        if self._differentiate is not None and _require_gradient(tensors):
            results: Sequence[Any] = self._differentiate(form, call, settings, tensors)
            return finish(results if arrays is None else arrays.wrap(results, given, in_place=form.in_place))

        operation = self._make_operation(call, tensors, settings, tensors if form.in_place else None)
        if form.in_place:
            increment_version(tensors)
        if not form.waits:
            convert = self._finish or finish
            if arrays is not None or self._gathers:
                convert = functools.partial(_convert, convert, arrays, given, in_place=form.in_place)
            return engine.handle_table.add(engine.submit(operation), convert)

        results = engine.run(operation)
        if self._gathers:
            results = [each.tensor for each in results]
        if arrays is not None:
            results = arrays.wrap(results, given, in_place=form.in_place)
        return finish(results)


def _list_group(kind: str, arrays: object) -> list[Any]:
    # One array would be read row by row.
    if not isinstance(arrays, Iterable) or hasattr(arrays, "shape"):
        raise WrongArgumentError(f"{kind}: a list of tensors was expected, not {type(arrays).__name__}")
    return list(arrays)


def _require_gradient(tensors: Tensors) -> bool:
    # The operation raises an error for what is not a tensor.
    for tensor in tensors:
        if getattr(tensor, "requires_grad", False):
            return torch.is_grad_enabled()
    return False


def _convert(
    finish: Finish, arrays: Arrays | None, given: Sequence[Any], results: Sequence[Any], *, in_place: bool
) -> object:
    tensors: Sequence[Any] = [each.tensor if isinstance(each, Gathered) else each for each in results]
    if arrays is not None:
        tensors = arrays.wrap(tensors, given, in_place=in_place)
    return finish(tensors)
