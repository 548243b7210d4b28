"""A call that fails before it asks anything: the other ranks, which wait for it or will, are told so at once.

Otherwise they would wait for a rank that has gone on, and their next calls of this name would meet this rank's later
ones. A call that has failed here counts as one: for the others, which are refused theirs, and where calls are counted.
"""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError, NotInitializedError
from worker_runtime.membership.runtime import RUNTIME

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def gives_up(kind: str) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Have a function of the API tell the other ranks when it fails before it has asked for its one operation.

    Args:
        kind: of the operation, which has the arguments `name` and `process_set`.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)  # which asks for nothing now
            try:
                executor = RUNTIME.executor
            except NotInitializedError:
                return function(*args, **kwargs)
            calls = executor.calls
            asked, unnamed = calls.asked, calls.unnamed
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                if calls.asked == asked:
                    made = None if calls.unnamed is unnamed else calls.unnamed
                    _tell(executor, kind, _bind(signature, args, kwargs), made, error)
                raise

        return call

    return decorate


def _bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """What was passed, by name, as far as it fits."""
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return kwargs


def _tell(
    executor: Engine, kind: str, arguments: dict[str, object], made: tuple[int, str] | None, error: BaseException
) -> None:
    """Tell the others; nobody where this rank cannot make the name that they use.

    Args:
        executor: of the generation.
        kind: of the operation.
        arguments: of the call.
        made: the set and name, where the call had counted one.
        error: of the call.
    """
    name = arguments.get("name")
    if made is None and isinstance(name, str | None):
        number = _find_number(executor, arguments.get("process_set", global_process_set))
        try:
            made = number, executor.make_name(kind, name, executor.find_members(number, kind).number)
        except (ValueError, HorovodInternalError):
            return
    if made is not None:
        executor.fail(*made, error)


def _find_number(executor: Engine, where: object) -> int:
    """The process set that was meant, as far as a wrong argument tells: its number, or its ranks; else the global one.

    A wrong guess is not worse than none: then the others wait for something else than this rank.
    """
    sets = executor.process_sets
    if isinstance(where, ProcessSet):
        if where.process_set_id is not None:
            return where.process_set_id
        ranks = tuple(where.ranks or ())
        return next((number for number in sets.numbers if sets.list_ranks(number) == ranks), GLOBAL_SET)
    return where if isinstance(where, int) and where in sets.numbers else GLOBAL_SET
