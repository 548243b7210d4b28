"""Small operations that travel at the same time: the values of all are packed by one call, and unpacked by one.

torch takes about a microsecond for each call, however little there is to do. Of a thousand tensors of 64 bytes, taken
one by one, each costs 5 us of calls to be sent and received; together 1.2. What travels is the same in both cases.

So the result of such an operation is there when it is released, and not only when it is waited for.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Any, TypeAlias

from worker_runtime.coordination.handle import Handle
from worker_runtime.coordination.operation import Bundler, Operation
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.coordination.wire import Released

# Finishes operations: the results; None where that fails for one of them, which each has to find out by itself.
Unpack: TypeAlias = Callable[[], Sequence[object] | None]


def pack(operations: Sequence[Operation[Any]]) -> list[bytes | memoryview]:
    """The payload of each operation.

    Raises:
        RuntimeError: there is no memory for them, or tensors were changed that should have been left alone.
    """
    payloads: list[bytes | memoryview] = []
    for bundler, alike in groupby(operations, _find_bundler):
        bundle = list(alike)
        if bundler is None or len(bundle) == 1:
            payloads += [operation.payload for operation in bundle]
        else:
            payloads += bundler.pack(bundle)
    return payloads


def answer(
    released: Released,
    handles: Sequence[Handle[Any]],
    list_members: Callable[[int], tuple[int, ...]],
    perform: Callable[[Handle[Any], Release, memoryview], None],
    conclude: Callable[[Sequence[Handle[Any]], Sequence[Release], Unpack], bool],
) -> None:
    """Answer operations in the order of their releases.

    Args:
        released: what has come.
        handles: of the operations.
        list_members: tells a set's ranks.
        perform: runs one operation by itself.
        conclude: finishes several operations together; False where each has to be run by itself.
    """
    terms = []
    for index, handle in enumerate(handles, released.index):
        question = handle.operation.question
        members = list_members(question.process_set)
        terms.append(Release(index, question, members, released.joined, released.extents, released.value))
    ends = [0, *accumulate(released.lengths)]
    payload = released.payload
    first = 0
    for bundler, alike in groupby(handles, _find_bundler_of_handle):
        bundle = list(alike)
        last = first + len(bundle)
        own = terms[first:last]
        unpack = None if bundler is None else partial(_unpack, bundler, bundle, payload[ends[first] : ends[last]])
        if unpack is None or len(bundle) == 1 or not conclude(bundle, own, unpack):
            for handle, term, start, end in zip(bundle, own, ends[first:last], ends[first + 1 :], strict=False):
                perform(handle, term, payload[start:end])
        first = last


def _unpack(bundler: Bundler, handles: Sequence[Handle[Any]], payload: memoryview) -> Sequence[object] | None:
    """See `Unpack`."""
    try:
        return bundler.unpack([handle.operation for handle in handles], payload)
    except RuntimeError:
        return None


def _find_bundler(operation: Operation[Any]) -> Bundler | None:
    return operation.bundler


def _find_bundler_of_handle(handle: Handle[Any]) -> Bundler | None:
    return handle.operation.bundler
