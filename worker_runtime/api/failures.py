"""Calls that fail before they ask anything, and operations of which one fails.

A call that fails before it asks anything tells the other ranks so, which wait for it or will. Otherwise they would wait
for a rank that has gone on, and their next calls of this name would meet this rank's later ones. A call that has failed
here counts as one: for the others, which are refused theirs, and where calls are counted.
"""

import inspect
from collections.abc import Mapping, Sequence

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.questions import GLOBAL_SET
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import HorovodInternalError


def report_failure(
    engine: Engine, kind: str, arguments: Mapping[str, object], counted: tuple[int, str] | None, error: BaseException
) -> None:
    """Report a failure to the other ranks; not where this rank cannot make the name that they use.

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


def bind(signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    """What was passed, by name, as far as it fits."""
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return kwargs


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
