"""A collective as programs call it, once for all frameworks.

A framework's package declares the arguments of each function and makes a `Request` of them: no more. What becomes of it
is written here. A collective is asked for and awaited, or gives a handle; its results are new arrays, or take the place
of those that were given. Which of these a function does, its name says.

Long because the three forms of a call (with a result, in place, asynchronous) share most of what they do.
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
    """Where a collective runs, and under what name.

    engine: of the present generation.
    among: the members of the process set.
    name: as it travels, the kind first: "allreduce.loss".
    """

    engine: Engine
    among: Members
    name: str

    def preparing(self) -> AbstractContextManager[None]:
        """While what is to be asked for is made: where that fails, the other ranks are told so."""
        return self.engine.preparing(self.among.number, self.name)

    def derive(self, suffix: str) -> "Call":
        """A call that follows from this one, such as its gradient's, under a name made from this one's."""
        return Call(self.engine, self.among, f"{self.name}.{suffix}")


Finish = Callable[[Sequence[Any]], object]
Differentiate = Callable[[str, Call, Any, Tensors], Tensors]
Trace = Callable[[str, Any], Any]

take_first: Callable[[Sequence[Any]], Any] = itemgetter(0)  # the result of a call of one array


class Arrays(Protocol):
    """How the arrays of a framework become tensors, and tensors arrays.

    takes_none: a group of none is given back, and nothing is asked for; otherwise it is an error.
    """

    takes_none: bool

    def read(self, arrays: Sequence[Any], *, in_place: bool) -> Tensors:
        """Tensors of the arrays' values; in place, tensors in the arrays' own memory, to be overwritten."""

    def wrap(self, results: Tensors, arrays: Sequence[Any], *, in_place: bool) -> Sequence[Any]:
        """New arrays of the results, like those that were given; in place, those that were given."""


class Request(NamedTuple, Generic[ResultT]):
    """What a program asks for.

    given: the arrays.
    name: the program's own for it; without one, calls are counted for each kind and set.
    process_set: in which it runs.
    settings: what else the collective needs to know: a Combination, a root, or splits.
    finish: makes what the program gets of the resulting arrays.
    arrays: of which kind they are; None for tensors.
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
    """Make of a function that makes a request the function of the API that waits for its result.

    Args:
        build: under its name in the API. Its arguments, and what it says of itself, are what programs see.
        differentiate: runs such a collective where a tensor requires a gradient, unless it works in place.
        trace: puts it into the graph that torch.compile makes; None to be left out of graphs.
    """
    name = build.__name__
    gives = get_args(inspect.signature(build).return_annotation)[0]
    return _make_function(build, name, gives, _make_completion(name, None, differentiate), trace=trace)


def overwrites(like: Callable[P, ResultT], name: str) -> Callable[P, ResultT]:
    """The same function in place.

    Args:
        like: as `runs` has made it.
        name: of the function: "allreduce_".
    """
    text = f"`{like.__name__}` in place: what is given has the results' values then; not differentiable."
    gives = inspect.signature(like).return_annotation
    return _make_function(like, name, gives, _make_completion(name), text)


def begins(like: Callable[P, object], name: str = "", finish: Finish | None = None) -> Callable[P, int]:
    """The function of the API that asks, and gives a handle.

    Args:
        like: what makes the request, or the function that waits, as `runs` and `overwrites` have made it.
        name: in the API: "allreduce_async"; that of `like` if none is given.
        finish: makes what `synchronize` gives of the resulting arrays, where it is not what `like` gives.
    """
    text = (
        f"Begin `{name.replace('_async', '')}`; not differentiable. It gives a handle for `poll` and `synchronize`, "
        "which returns the result. Until then the arrays of the call must be left alone."
    )
    own = name or like.__name__
    return _make_function(like, own, int, _make_completion(own, finish), text if name else "")


def gives_up(
    kind: str, complete: Callable[[Engine, Any], Any] | None = None, trace: Trace | None = None
) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Have a function of the API tell the other ranks when it fails before it has asked for its operation.

    Args:
        kind: of the operation; `name` and `process_set` are arguments of the function.
        complete: makes what programs get of what the function gives; None where that is the same.
        trace: does so while torch.compile traces.
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
    engine = engine or RUNTIME.engine
    title = kind if name is None else f"{kind} '{name}'"
    number = GLOBAL_SET
    if process_set is not global_process_set:
        check_process_set(title, process_set)
        number = process_set.find_number(title)
    return Call(engine, engine.find_members(number, title), engine.make_name(kind, name, number))


def make_allreduce(
    call: Call, tensors: Tensors, how: Combination, into: Tensors | None = None
) -> Operation[list[torch.Tensor]]:
    """The operation that combines tensors; see `Allreduce` and `Adasum`, whose errors it raises."""
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
    """A function of the API, with the arguments of `like`, and with `text` before what that says of itself."""
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
    """What asks for a request's collective and waits, or gives a handle: what the function's name says."""
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
    if not isinstance(arrays, Iterable) or hasattr(arrays, "shape"):  # one array would be taken row by row
        raise WrongArgumentError(f"{kind}: a list of tensors was expected, not {type(arrays).__name__}")
    return list(arrays)


def _require_gradient(tensors: Tensors) -> bool:
    for tensor in tensors:  # those that are none are named by the operation
        if getattr(tensor, "requires_grad", False):
            return torch.is_grad_enabled()
    return False


def _convert(
    finish: Finish, arrays: Arrays | None, given: Sequence[Any], results: Sequence[Any], *, in_place: bool
) -> object:
    tensors = [each.tensor if isinstance(each, Gathered) else each for each in results]
    return finish(tensors if arrays is None else arrays.wrap(tensors, given, in_place=in_place))
