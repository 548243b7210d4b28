"""A call that fails before it asks anything: the other ranks, which wait for it or will, are told so at once.

Otherwise they would wait for a rank that has gone on, and their next calls of this name would meet this rank's later
ones. A call that has failed here counts as one: for the others, who are refused theirs, and where calls are counted.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.executor import Executor
from worker_runtime.errors import HorovodInternalError, NotInitializedError
from worker_runtime.membership.runtime import RUNTIME

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def gives_up(kind: str | None = None) -> Callable[[Callable[P, ResultT]], Callable[P, ResultT]]:
    """Have a function of the API tell the other ranks when it fails before it has asked.

    Args:
        kind: of the one operation that it asks for, with the arguments `name` and `process_set`, so that it can also
            fail before that has its name; None for a function of several.
    """

    def decorate(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            try:
                executor = RUNTIME.executor
            except NotInitializedError:
                return function(*args, **kwargs)
            unasked = executor.accord.unasked
            made = unasked.made
            unasked.calls += 1
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                calls: Iterable[tuple[int, str]] = executor.accord.find_unasked(made)
                if kind is not None and unasked.made == made:
                    calls = _count_call(executor, kind, _bind(signature, args, kwargs))
                for process_set, name in calls:
                    executor.give_up_call(process_set, name, f"{type(error).__name__}: {error}")
                raise
            finally:
                unasked.calls -= 1
                if not unasked.calls:
                    unasked.names.clear()  # of those that need not be asked for: this rank is alone in its set

        return call

    return decorate


def _bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """What was passed, by name, as far as it fits."""
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return kwargs


def _count_call(executor: Executor, kind: str, arguments: dict[str, object]) -> list[tuple[int, str]]:
    """Make the name that the call did not come to; none where this rank cannot make it anyway."""
    name = arguments.get("name")
    if not isinstance(name, str | None):
        return []
    try:
        number = _find_number(executor, arguments.get("process_set", global_process_set))
        return [(number, executor.make_name(kind, name, executor.find_members(number, kind).number))]
    except (ValueError, HorovodInternalError):
        return []


def _find_number(executor: Executor, where: object) -> int:
    """The process set that was meant, as far as a wrong argument tells: its number, or its ranks; else the global one.

    A wrong guess is not worse than none: then the others wait for something else than this rank, and all begin anew.
    """
    sets = executor.process_sets
    if isinstance(where, ProcessSet):
        if where.process_set_id is not None:
            return where.process_set_id
        ranks = tuple(where.ranks or ())
        return next((number for number in sets.numbers if sets.list_ranks(number) == ranks), GLOBAL_SET)
    return where if isinstance(where, int) and where in sets.numbers else GLOBAL_SET
