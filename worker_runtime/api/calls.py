"""The collectives as programs call them, once for all frameworks.

A framework's package declares the arguments of each function, and returns them as a `Request`. This module runs the
request. The function's name tells how: `allreduce` waits and returns new arrays, `allreduce_` overwrites the given
arrays, and `allreduce_async` returns a handle.

Long because the three forms of a call share most of their code.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, get_args

import torch
from torch.autograd.graph import increment_version

from worker_runtime.api.failures import bind, report_failure
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
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Reduction
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import NotInitializedError, WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
Tensors = Sequence[torch.Tensor]


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
Differentiate = Callable[[str, Call, Any, Tensors], Tensors]
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


class Request(NamedTuple, Generic[ResultT]):
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


def runs(
    build: Callable[P, Request[ResultT]], differentiate: Differentiate | None = None, trace: Trace | None = None
) -> Callable[P, ResultT]:
    """Decorate a function that returns a request: the result runs the request and waits for it.

    Args:
        build: the function; programs see its name, arguments and docstring.
        differentiate: runs the collective where a tensor requires a gradient; not used in place.
        trace: adds the collective to the graph of torch.compile; None breaks the graph instead.
    """
    name = build.__name__
    gives = get_args(inspect.signature(build).return_annotation)[0]
    return _make_function(build, name, gives, _make_completion(name, None, differentiate), trace=trace)


def overwrites(like: Callable[P, ResultT], name: str) -> Callable[P, ResultT]:
    """The in-place form of a function.

    Args:
        like: a function that `runs` has decorated.
        name: the name of the new function: "allreduce_".
    """
    text = f"`{like.__name__}` in place: overwrites its arguments with the results, and returns them."
    gives = inspect.signature(like).return_annotation
    return _make_function(like, name, gives, _make_completion(name), text)


def begins(like: Callable[P, object], name: str = "", finish: Finish | None = None) -> Callable[P, int]:
    """The asynchronous form of a function, which returns a handle.

    Args:
        like: a function that returns a request, or a function that `runs` or `overwrites` returned.
        name: the name of the new function: "allreduce_async"; if empty, the name of `like`.
        finish: turns the list of resulting arrays into the return value of `synchronize`, where it differs from that of
            `like`.
    """
    text = (
        f"Start `{name.replace('_async', '')}`, and return a handle for `poll` and `synchronize`; not differentiable. "
        "`synchronize` returns the result. Do not change the arrays before that; in place, do not read them either."
    )
    own = name or like.__name__
    return _make_function(like, own, int, _make_completion(own, finish), text if name else "")


def gives_up(
    kind: str, complete: Callable[[Engine, Any], Any] | None = None, trace: Trace | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Decorate a function of the API, so that its error is reported to the other ranks if it submits no operation.

    Args:
        kind: the operation's kind; the function has arguments `name` and `process_set`.
        complete: turns the function's result into the return value; None where it is the same.
        trace: does this while torch.compile traces.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            if trace is not None and torch.compiler.is_compiling():
                return trace(kind, function(*args, **kwargs))  # type: ignore[no-any-return]  # what the function gives
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
                    counted = None if calls.unnamed is unnamed else calls.unnamed
                    report_failure(engine, kind, bind(signature, args, kwargs), counted, error)
                raise

        return untraced(call) if trace is None else call

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


def _make_function(
    like: Callable[..., object],
    name: str,
    gives: object,
    complete: Callable[[Engine, Any], Any],
    text: str = "",
    *,
    trace: Trace | None = None,
) -> Callable[..., Any]:
    """A function of the API with the arguments of `like`; its docstring is `text` followed by that of `like`."""
    build = inspect.unwrap(like)
    made: Any = gives_up(name.removesuffix("_").removesuffix("_async"), complete, trace)(build)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{text}\n\n{inspect.getdoc(like)}" if text else build.__doc__
    made.__annotations__ = build.__annotations__ | {"return": gives}
    made.__signature__ = inspect.signature(build).replace(return_annotation=gives)
    return made  # type: ignore[no-any-return]  # a function with attributes


def _make_completion(
    name: str, own_finish: Finish | None = None, differentiate: Differentiate | None = None
) -> Callable[[Engine, Request[Any]], Any]:
    """The function that runs a request, in the form that the API function's name gives."""
    kind = name.removesuffix("_").removesuffix("_async")
    in_place, begins = name.endswith("_"), "_async" in name
    if in_place or begins:
        differentiate = None
    make_operation = _OPERATIONS[kind.removeprefix("grouped_")]
    is_group, is_gather = kind.startswith("grouped_"), kind.endswith("allgather")

    def complete(engine: Engine, request: Request[Any]) -> Any:  # noqa: ANN401 - what the function gives
        given, name, process_set, settings, finish, arrays = request
        if is_group:
            given = _list_group(kind, given)
            if arrays is not None and arrays.takes_none and not (given or begins):
                return request.given
        call = begin_call(kind, name, process_set, engine)
        tensors = given if arrays is None else arrays.read(given, in_place=in_place)
        if differentiate is not None and _require_gradient(tensors):
            results: Sequence[Any] = differentiate(kind, call, settings, tensors)
        else:
            operation = make_operation(call, tensors, settings, tensors if in_place else None)
            if in_place:
                increment_version(tensors)
            if begins:
                convert = own_finish or finish
                if arrays is not None or is_gather:
                    convert = functools.partial(_convert, convert, arrays, given, in_place=in_place)
                return engine.handle_table.add(engine.submit(operation), convert)
            results = engine.run(operation)
            if is_gather:
                results = [each.tensor for each in results]
        return finish(results if arrays is None else arrays.wrap(results, given, in_place=in_place))

    return complete


def _list_group(kind: str, arrays: object) -> list[Any]:
    if not isinstance(arrays, Iterable) or hasattr(arrays, "shape"):  # one array would be read row by row
        raise WrongArgumentError(f"{kind}: a list of tensors was expected, not {type(arrays).__name__}")
    return list(arrays)


def _require_gradient(tensors: Tensors) -> bool:
    for tensor in tensors:  # the operation raises an error for what is not a tensor
        if getattr(tensor, "requires_grad", False):
            return torch.is_grad_enabled()
    return False


def _convert(
    finish: Finish, arrays: Arrays | None, given: Sequence[Any], results: Sequence[Any], *, in_place: bool
) -> object:
    tensors = [each.tensor if isinstance(each, Gathered) else each for each in results]
    return finish(tensors if arrays is None else arrays.wrap(tensors, given, in_place=in_place))
