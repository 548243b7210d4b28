"""A collective on arrays that is ready to be asked for: what all functions of this package make of their arguments."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from worker_runtime.api.calls import Call
from worker_runtime.coordination.operation import Operation

ResultT = TypeVar("ResultT")


class Prepared(NamedTuple, Generic[ResultT]):
    """An operation on views of arrays.

    call: where it runs.
    operation: on the views.
    convert: makes arrays of what the operation gives.
    """

    call: Call
    operation: Operation[Any]
    convert: Callable[[Any], ResultT]

    def run(self) -> ResultT:
        """Ask for it and wait; what MXNet enqueues afterwards sees the result.

        Raises:
            ValueError: the name is in flight.
            HorovodInternalError: the ranks do not agree on it, or it failed.
        """
        return self.convert(self.call.executor.run(self.operation))

    def begin(self) -> int:
        """Ask for it, and return the handle whose `synchronize` gives the result.

        Raises:
            ValueError: the name is in flight.
            HorovodInternalError: it cannot run any more.
        """
        executor = self.call.executor
        return executor.handle_table.add(executor.submit(self.operation), self.convert)
