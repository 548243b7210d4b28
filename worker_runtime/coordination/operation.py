"""One collective of this rank, and in which set of ranks it runs: what the executor knows of an operation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from worker_runtime.coordination.ordering.questions import Question, Release
from worker_runtime.groups.torch_groups import TorchGroup, Work

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Members:
    """A process set as its member `rank` sees it.

    number: of the set; 0 is that of all ranks.
    ranks: its members' ranks in the job, in order.
    rank: this worker's rank in the job; it is one of them.
    generation: in which they are those.
    """

    number: int
    ranks: tuple[int, ...]
    rank: int
    generation: int = 0

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ranks)

    @property
    def position(self) -> int:
        """This worker's rank within the set, which is also its rank in the set's torch group."""
        return self.ranks.index(self.rank)


class Bundler(ABC):
    """What operations have in common whose values can be packed together, and unpacked: see `bundles.py`.

    Operations that are alike in this have one and the same bundler, or equal ones.
    """

    @abstractmethod
    def pack(self, operations: Sequence[Any]) -> Sequence[bytes | memoryview]:
        """The payload of each."""

    @abstractmethod
    def unpack(self, operations: Sequence[Any], payload: memoryview) -> Sequence[object]:
        """Finish all of them: the result of each, from the payloads of their answers, one after the other."""


class Operation(ABC, Generic[ResultT_co]):
    """One collective with its tensors.

    It is asked for with `question`, `extents` and `payload`; when it is released, `start` is called (unless its data
    have travelled as payload, or the set has one member), in whatever thread; when its works are done, `finish`, once,
    by whoever waits for it.

    title: how messages call it, for example "allreduce 'loss'".
    among: its set, as it was when the operation was made.
    question: its set, its name as it travels ("allreduce.loss"), its signature.
    extents: what may differ between ranks; see `Release`.
    bundler: packs and unpacks it together with others; None where that would not be faster.
    is_of_step: it belongs to an optimizer's step, which is run again as a whole.
    """

    title: str
    among: Members
    question: Question
    extents: tuple[int, ...] = ()
    bundler: Bundler | None = None
    is_of_step: bool = False

    @property
    def payload(self) -> bytes | memoryview:
        """The bytes that travel inside the question, contiguous; empty when the signature says that none do."""
        return b""

    def find_obstacle(self, *, is_begun: bool) -> str:
        """Why it cannot be run again after the loss of a rank, as the end of a sentence; "" when it can.

        Args:
            is_begun: `start` was called.
        """
        del is_begun
        return "its result would depend on which ranks are left"

    @property
    def needed_rank(self) -> int | None:
        """The rank of the job without which it makes no sense; None where any ranks will do."""
        return None

    def renew(self, among: Members, ranks: Mapping[int, int]) -> Self:
        """The same operation in the next generation, with the same tensors. Only where `find_obstacle` finds none.

        Args:
            among: its set as it is then.
            ranks: of each rank that is left, its new one.
        """
        raise NotImplementedError

    @abstractmethod
    def start(self, group: TorchGroup, terms: Release) -> Sequence[Work]:
        """Begin to communicate with the set's members. It may wait for them: all run their releases in one order."""

    @abstractmethod
    def finish(self, terms: Release, payload: memoryview) -> ResultT_co:
        """Make the result, after all works of `start` are done.

        Args:
            terms: of the release; in a set of one member, made up from this rank's own question.
            payload: the answer's, where the data have travelled so; else empty.
        """
