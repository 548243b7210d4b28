"""Calls that fail before they submit an operation, and groups of operations of which one fails.

A call that fails before it submits its operation reports that to the other ranks. Otherwise they would wait for this
rank, and match their call with a later call of this rank. The failed call counts as a call: the other ranks' calls of
this name raise an error, and the numbers of unnamed calls stay equal.
"""

import inspect
from collections.abc import Mapping, Sequence

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError


def report_failure(
    engine: Engine, kind: str, arguments: Mapping[str, object], counted: tuple[int, str] | None, error: BaseException
) -> None:
    """Report a failed call to the other ranks, unless its arguments do not tell the name that they use.

    Args:
        engine: the engine of the present generation.
        kind: the operation's kind.
        arguments: the call's arguments, by name.
        counted: the set and the name, where the call has already been numbered.
        error: the error that the call raised.
    """
    name = arguments.get("name")
    if counted is None and isinstance(name, str | None):
        number = _guess_number(engine, arguments.get("process_set", global_process_set))
        try:
            counted = number, engine.make_name(kind, name, engine.find_members(number, kind).number)
        except (ValueError, HorovodInternalError):  # then no rank waits for the call
            return
    if counted is not None:
        engine.fail_others(*counted, error)


def bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """The arguments of a call by name, also where they do not fit the signature."""
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return kwargs


def await_all(engine: Engine, handles: Sequence[Handle[object]]) -> None:
    """Wait for all operations, also after one has failed, so that none remains in flight.

    Args:
        engine: the engine that runs them.
        handles: the handles of the operations.

    Raises:
        HorovodInternalError: the first error.
    """
    failures = []
    for handle in handles:
        try:
            engine.wait(handle)
        except HorovodInternalError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _guess_number(engine: Engine, where: object) -> int:
    """The number of the process set that a wrong argument most likely means; the global set if it does not tell.

    A wrong guess does no harm: it fails an operation that no rank calls.
    """
    sets = engine.process_sets
    if isinstance(where, ProcessSet):
        if where.process_set_id is not None:
            return where.process_set_id
        ranks = tuple(where.ranks or ())
        return next((number for number in sets.numbers if sets.list_ranks(number) == ranks), GLOBAL_SET)
    if isinstance(where, int) and where in sets.numbers:
        return where
    return GLOBAL_SET
