"""What a rank asks of the sequencer, and the answers: the values that rules, wire and engine share."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

# The largest operation whose data travel inside the question and come back with the answer, in bytes: measured, one
# that large is still faster than gloo on loopback. On a network the sequencer's host carries that of every rank, so
# what all ranks send together is bounded too.
PAYLOAD_BYTES = 128 * 1024
ALL_PAYLOADS_BYTES = 1024 * 1024

GLOBAL_SET = 0


def make_title(name: str) -> str:
    """How messages call the operation that travels as `name`: of "allreduce.loss" it is "allreduce 'loss'"."""
    kind, _, own = name.partition(".")
    return f"{kind} '{own}'" if own else kind


class Kind(IntEnum):
    """What an operation does."""

    ALLREDUCE = 1
    ALLGATHER = 2
    BROADCAST = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    BARRIER = 6
    JOIN = 7
    ADD_SET = 8
    REMOVE_SET = 9
    COMMIT = 10
    FAIL = 11  # the call of this name has failed on the rank before it could ask; the note says why

    __hash__ = int.__hash__  # the enumeration's own is Python code, and every question's kind is looked up


class Reduction(IntEnum):
    """How an allreduce or a reducescatter combines the ranks' values; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    __hash__ = int.__hash__  # as of `Kind`; every call's plan is looked up by this


@dataclass(frozen=True, slots=True)
class Signature:
    """What all members of a set must agree on before an operation runs.

    dtypes, shapes: of each of its tensors, the dtypes by torch's names ("float32"). The first dimension of what is
        gathered or exchanged (ALLGATHER, ALLTOALL) may differ between ranks: it is left out here, and is a size.
    root: a rank of the job; None where there is none. Of an ADD_SET the number that the set had in the generation
        before, and is to have again.
    device: "cpu" or "cuda".
    payload_dtype: as what the payload's elements are combined, by NumPy's name; "" when the data do not travel inside
        the question. The payload is combined by `reduction` (an average as a sum), the root's is broadcast, those of
        an ALLGATHER are concatenated in rank order; where a rank has rows and sends none inside, no data travel so.
    tolerates_joined: a member that has joined counts as asking with no rows. (An ALLREDUCE always tolerates one, which
        contributes neutral elements, and so does a COMMIT.)
    note: what else must be equal, and is shown where it is not.
    """

    kind: Kind
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    reduction: Reduction | None = None
    root: int | None = None
    device: str = "cpu"
    payload_dtype: str = ""
    tolerates_joined: bool = False
    note: str = ""


class Question(NamedTuple):
    """A rank has this operation ready.

    (A tuple, since there may be a thousand in one message: it is made in a third of a frozen dataclass's time.)

    name: as it travels, the operation's kind first: "allreduce.loss". A rank has at most one pending question of a
        name and set.
    factors: before and after the reduction, which all members must agree on too. They are no part of the signature,
        since a program may change them with each step.
    """

    process_set: int
    name: str
    signature: Signature
    factors: tuple[float, float] = (1.0, 1.0)

    def add_note(self, note: str) -> "Question":
        """The same question with another note."""
        return self._replace(signature=replace(self.signature, note=note))


class Release(NamedTuple):
    """Every member runs this operation now; all run their releases in the order of `index`.

    (A tuple, as above.)

    members: the set's ranks, in order.
    joined: those of them that have joined and not asked: they contribute neutral elements.
    sizes: of each member, as many numbers each: the first dimension of each tensor of an ALLGATHER, the splits of an
        ALLTOALL (how many rows go to each member), the ranks of an ADD_SET, 1 for an ALLREDUCE that must mind NaNs;
        zeros for one that has joined.
    value: the number of an ADD_SET's set; the rank that joined last of a JOIN.
    """

    index: int  # type: ignore[assignment]  # it hides the method of tuples, which is not wanted here
    question: Question
    members: tuple[int, ...]
    joined: tuple[int, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    value: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The operation of this set and name will not run; the ranks that asked for it get the reason, and continue."""

    process_set: int
    name: str
    ranks: tuple[int, ...]
    reason: str
    is_deadlock: bool = False  # every rank waits for another: all that is pending is refused


@dataclass(frozen=True, slots=True)
class Failure:
    """The generation has lost a member: nothing is released any more, and what runs is to be ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """A stop notice has come for the job, before the release of this index: all learn of it at the same place."""

    index: int


Answer = Release | Refusal | Failure | Stopping


def fits_payload(size: int, count_bytes: int) -> bool:
    """Whether data of that many bytes travel inside the question, in a set of `size` members; alike on all ranks."""
    return count_bytes <= min(PAYLOAD_BYTES, ALL_PAYLOADS_BYTES // size)
