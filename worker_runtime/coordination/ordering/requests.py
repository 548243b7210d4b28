"""The requests of ranks to the sequencer, and its responses: values for rules, wire and engine."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

# The largest operation whose data are sent inside the request and the response, in bytes. By measurement this is still
# faster than gloo on loopback. On a network the sequencer's host carries the data of all ranks, whose sum is bounded.
PAYLOAD_BYTES = 128 * 1024
ALL_PAYLOADS_BYTES = 1024 * 1024

GLOBAL_SET = 0


def make_title(name: str) -> str:
    """An operation's name in messages, from its full name: "allreduce 'loss'" for "allreduce.loss"."""
    kind, _, own = name.partition(".")
    if own:
        return f"{kind} '{own}'"
    return kind


class Kind(IntEnum):
    """The kinds of operations."""

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
    FAIL = 11  # the rank's call of this name has failed before it could ask; the note is the error

    __hash__ = int.__hash__  # the enumeration's own is Python code, and every request's kind is looked up


class Reduction(IntEnum):
    """The reductions of allreduce and reducescatter; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    __hash__ = int.__hash__  # as of `Kind`; every call's plan is looked up by this


@dataclass(frozen=True, slots=True)
class Signature:
    """The properties of an operation that must be the same on all members of its set.

    dtypes, shapes: the dtype ("float32") and shape of each tensor. The first dimension of an ALLGATHER or ALLTOALL may
        differ between ranks: it is omitted here, and is one of the sizes.
    root: a rank of the job; None if there is none. For an ADD_SET the number of the set in the former generation.
    device: "cpu" or "cuda".
    payload_dtype: NumPy's name of the dtype in which the payload is combined; "" if the data are not sent inside the
        request. The payload is combined by `reduction` (an average as a sum); that of a BROADCAST is the root's; those
        of an ALLGATHER are concatenated in rank order, unless a rank has rows and sends none inside.
    tolerates_joined: a joined member counts as asking with no rows. (ALLREDUCE and COMMIT always tolerate it.)
    note: further properties as a text, which is shown where it differs.
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


class Request(NamedTuple):
    """A rank has this operation ready.

    (A tuple, since a message may have a thousand: it is created in a third of a frozen dataclass's time.)

    name: the full name, the operation's kind first: "allreduce.loss". A rank has at most one pending request of a name
        and set.
    factors: the factors before and after the reduction, which must be equal too. They are not in the signature, since a
        program may change them in each step.
    """

    process_set: int
    name: str
    signature: Signature
    factors: tuple[float, float] = (1.0, 1.0)

    def add_note(self, note: str) -> "Request":
        """The same request with another note."""
        return self._replace(signature=replace(self.signature, note=note))


class Release(NamedTuple):
    """Every member runs this operation now; all run their releases in the order of `index`.

    (A tuple, as above.)

    members: the set's ranks, in order.
    joined: the members that have joined and not asked: they contribute neutral elements.
    sizes: equally many numbers of each member: the first dimension of each tensor of an ALLGATHER, the splits of an
        ALLTOALL, the ranks of an ADD_SET, or 1 for an ALLREDUCE with a NaN; zeros for a joined member.
    value: the set's number for an ADD_SET; the rank that joined last for a JOIN.
    last: the rank that was the last to ask, as the sequencer says; of a burst, for its last request. -1 if unknown.
    """

    index: int  # type: ignore[assignment]  # it hides the method of tuples, which is not wanted here
    request: Request
    members: tuple[int, ...]
    joined: tuple[int, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    value: int = 0
    last: int = -1


@dataclass(frozen=True, slots=True)
class Refusal:
    """The operation of this set and name is refused. The ranks that asked get the reason, and can continue."""

    process_set: int
    name: str
    ranks: tuple[int, ...]
    reason: str
    is_deadlock: bool = False  # every rank waits for another: all pending operations are refused


@dataclass(frozen=True, slots=True)
class Failure:
    """The generation has lost a member: nothing more is released, and running operations must be aborted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The job has received a stop notice: it takes effect before the release of this index on all ranks."""

    index: int


Response = Release | Refusal | Failure | Stopping


def fits_payload(size: int, count_bytes: int) -> bool:
    """Whether data of this many bytes are sent inside the request, in a set of `size` members."""
    return count_bytes <= min(PAYLOAD_BYTES, ALL_PAYLOADS_BYTES // size)
