"""What a rank hears from the sequencer: the answers, as its engine carries them out.

Small operations that are released one after the other are one answer, since torch takes about a microsecond for each
call, however little there is to do. Of a thousand tensors of 64 bytes, taken one by one, each costs 5 us of calls to be
sent and received; together 1.2.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

from worker_runtime.coordination.handle import Handle
from worker_runtime.coordination.operation import Bundler
from worker_runtime.coordination.ordering.questions import Release
from worker_runtime.coordination.wire import Released

# Finishes operations: the results; None where that fails for one of them, which each has to find out by itself.
Unpack: TypeAlias = Callable[[], Sequence[object] | None]


class Answered(NamedTuple):
    """Operations of this rank were released, one after the other.

    handles: of the operations.
    terms: of each release.
    payload: what came with all, one after the other.
    lengths: of what came with each.
    unpack: finishes all of them together; None where each is to be run by itself.
    """

    handles: Sequence[Handle[Any]]
    terms: Sequence[Release]
    payload: memoryview
    lengths: Sequence[int]
    unpack: Unpack | None

    @property
    def payloads(self) -> Iterator[memoryview]:
        """What came with each."""
        ends = accumulate(self.lengths, initial=0)
        return (self.payload[start:end] for start, end in pairwise(ends))


class Neutral(NamedTuple):
    """An operation was released for which this rank, having joined, did not ask."""

    terms: Release


class Refused(NamedTuple):
    """The operation will not run."""

    handle: Handle[Any]
    reason: str
    is_deadlock: bool


class StopNoticed(NamedTuple):
    """A stop notice has come for the job, before the release of this index."""

    index: int  # type: ignore[assignment]  # it hides the method of tuples


class Ended(NamedTuple):
    """Nothing will be answered any more.

    fault: of the runtime itself, if that is the reason.
    """

    reason: str
    fault: Exception | None = None


Answer: TypeAlias = Answered | Neutral | Refused | StopNoticed | Ended


def split(
    released: Released, handles: Sequence[Handle[Any]], list_members: Callable[[int], tuple[int, ...]]
) -> Iterator[Answered]:
    """The answers of one message, in the order of their releases.

    Args:
        released: what has come.
        handles: of the operations.
        list_members: tells a set's ranks.
    """
    terms = []
    for index, handle in enumerate(handles, released.index):
        question = handle.operation.question
        members = list_members(question.process_set)
        terms.append(Release(index, question, members, released.joined, released.extents, released.value))
    ends = [0, *accumulate(released.lengths)]
    payload = released.payload
    first = 0
    for bundler, alike in groupby(handles, _find_bundler):
        bundle = list(alike)
        last = first + len(bundle)
        own = payload[ends[first] : ends[last]]
        unpack = None if bundler is None or len(bundle) == 1 else partial(_unpack, bundler, bundle, own)
        yield Answered(bundle, terms[first:last], own, released.lengths[first:last], unpack)
        first = last


def _unpack(bundler: Bundler, handles: Sequence[Handle[Any]], payload: memoryview) -> Sequence[object] | None:
    """See `Unpack`."""
    try:
        return bundler.unpack([handle.operation for handle in handles], payload)
    except RuntimeError:
        return None


def _find_bundler(handle: Handle[Any]) -> Bundler | None:
    return handle.operation.bundler
