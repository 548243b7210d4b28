"""Python objects between workers, as programs ask for it; how they travel stands in `objects`."""

from typing import Any

from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, check_process_set, global_process_set
from worker_runtime.collectives.untraced import untraced
from worker_runtime.engine import objects
from worker_runtime.membership.runtime import RUNTIME


@untraced
@gives_up("broadcast_object")
def broadcast_object(
    obj: Any = None,  # noqa: ANN401 - any object
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # noqa: ANN401 - any object
    """The object of rank `root_rank` on all ranks of a set: itself on the root, a copy elsewhere.

    It travels by cloudpickle, in any size, with a proof that it comes from a worker of the job.

    Args:
        obj: the object; counts on the root alone.
        root_rank: whose object; its rank in the job, also with a process set.
        name: by which the ranks' calls find each other; without one, calls are counted.
        process_set: the ranks that take part.

    Raises:
        ValueError: the root or this rank is not in the set, or the name is in flight.
        HorovodInternalError: the ranks do not agree on the root, the root could not pickle its object, the operation
            failed, or Horovod has not been initialized.
        Exception: on the root, what pickling has raised.
    """
    check_process_set("broadcast_object", process_set)
    number = process_set.find_number("broadcast_object")
    return objects.broadcast_object(RUNTIME.executor, obj, root_rank, name, number)


@untraced
@gives_up("allgather_object")
def allgather_object(
    obj: Any,  # noqa: ANN401 - any object
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The objects of all ranks of a set, in rank order; also this rank's own is a copy.

    They travel by cloudpickle, with a proof that they come from workers of the job.

    Args:
        obj: this rank's object.
        name: by which the ranks' calls find each other; without one, calls are counted.
        process_set: the ranks that take part.

    Raises:
        ValueError: this rank is not in the set, or the name is in flight.
        HorovodInternalError: another rank could not pickle its object, the operation failed, or Horovod has not been
            initialized.
        Exception: what pickling this rank's object has raised.
    """
    check_process_set("allgather_object", process_set)
    return objects.allgather_object(RUNTIME.executor, obj, name, process_set.find_number("allgather_object"))
