"""What one rank and the sequencer send each other: operations become questions, and what comes back becomes answers.

Both sides count questions, so each question that is counted must be sent. Therefore `SendQueue.ask` checks first that
an operation can be put into a question. Its values are read only when it is sent, together with those of its
neighbours; where that fails, a FAIL is sent in its place, from which all ranks learn the error.

Small operations that follow each other are packed by one call and unpacked by one. torch takes about a microsecond for
each call, however little there is to do: of a thousand tensors of 64 bytes, taken one by one, each costs 5 us of calls
to be sent and received; together 1.2.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from worker_runtime.coordination import wire
from worker_runtime.coordination.operation import Batcher, Handle, Operation
from worker_runtime.coordination.ordering.questions import Kind, Release, Signature
from worker_runtime.coordination.wire import Frame, Released, encode_question
from worker_runtime.errors import UnsendableError

BURST = 256  # questions that are sent before more follow: the sequencer begins with them meanwhile
NUMBERS = 2**32  # questions are counted up to here, and then from 0 again
_MAX_COUNT = 0xFFFF  # of a question's sizes, and of the bytes of its name

_Gathered = tuple[Operation[Any], int, bytes]  # with the number of its signature, and its name as it travels
_Pieces = list[bytes | memoryview]


class SendQueue:
    """The frames and questions that are to be sent, in their order.

    asked: how many questions were asked until now.
    """

    def __init__(self) -> None:
        self._signatures: OrderedDict[Signature, int] = OrderedDict()  # the one that was used last at the end
        self._latest: tuple[Signature | None, int] = (None, -1)  # of them: in a burst most are one object
        self._frames: _Pieces = []  # signatures and complete frames
        self._operations: list[_Gathered] = []  # that were asked for after these
        self.asked = 0

    @property
    def is_full(self) -> bool:
        """Whether it holds so much that the sequencer may begin with it."""
        return len(self._operations) >= BURST

    def ask(self, operation: Operation[object]) -> int:
        """Add an operation, whose values are read by `take`; answers refer to it by the number that is returned.

        Raises:
            UnsendableError: no question can be made of it; it was not added.
        """
        question = operation.question
        try:
            name = question.name.encode()
            if operation.sizes or len(name) > _MAX_COUNT:
                _check(name, operation.sizes)
            signature = self._call_signature(question.signature)
        except (TypeError, ValueError, ArithmeticError, RecursionError, struct.error) as error:
            raise UnsendableError(operation.title, str(error)) from None
        self._operations.append((operation, signature, name))
        number, self.asked = self.asked, (self.asked + 1) % NUMBERS
        return number

    def put(self, kind: Frame, body: bytes = b"") -> None:
        """Add another frame; it is sent after the questions that were added before."""
        self._encode_questions()
        self._frames.append(wire.encode_frame(kind, body))

    def take(self) -> bytes:
        """All that is to be sent; the queue is empty then."""
        self._encode_questions()
        if not self._frames:
            return b""
        data, self._frames = b"".join(self._frames), []
        return data

    def _encode_questions(self) -> None:
        """Make frames of the operations."""
        gathered, self._operations = self._operations, []
        if not gathered:
            return
        frames: _Pieces = []
        pieces: _Pieces = []
        length = 0
        try:
            for (operation, signature, name), payload in zip(gathered, _pack(gathered), strict=True):
                process_set, _, _, factors = operation.question
                if isinstance(payload, Exception):
                    piece: bytes | memoryview = b""
                    head = encode_question(self._call_failure(payload), process_set, name)
                else:
                    piece = payload
                    head = encode_question(signature, process_set, name, operation.sizes, len(piece), factors=factors)
                count = len(head) + len(piece)
                if length + count > wire.MAX_FRAME_BYTES:
                    frames += _close(pieces, length)
                    pieces, length = [], 0
                pieces += (head, piece)
                length += count
            frames += _close(pieces, length)
        except BaseException:  # of a signal's handler: what was counted must be sent
            self._operations[:0] = gathered
            raise
        self._frames += frames

    def _call_failure(self, error: Exception) -> int:
        """The signature of the question that goes in the place of an operation whose values cannot be read."""
        return self._call_signature(Signature(Kind.FAIL, note=f"{type(error).__name__}: {error}"))

    def _call_signature(self, signature: Signature) -> int:
        """Its number. A new one is sent to the sequencer, in the place of the oldest one if there are too many."""
        latest, number = self._latest
        if signature is latest:
            return number
        signatures = self._signatures
        known = signatures.get(signature)
        if known is None:
            is_full = len(signatures) >= wire.MAX_SIGNATURES
            known = next(iter(signatures.values())) if is_full else len(signatures)
            frame = wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(known, signature))
            if is_full:  # none that is in the queue: those were used later
                signatures.popitem(last=False)
            signatures[signature] = known  # now that it could be encoded
            self._frames.append(frame)
        else:
            signatures.move_to_end(signature)
        self._latest = signature, known
        return known


def _check(name: bytes, sizes: Sequence[int]) -> None:
    """Make sure that these can be put into a question.

    Raises:
        ValueError: there is too much of them.
        struct.error: a size is no integer of 64 bits.
    """
    if len(name) > _MAX_COUNT:
        raise ValueError(f"its name has {len(name)} bytes, and {_MAX_COUNT} are possible")
    if len(sizes) > _MAX_COUNT:
        raise ValueError(f"it has {len(sizes)} tensors or splits, and {_MAX_COUNT} are possible")
    struct.pack(f"<{len(sizes)}q", *sizes)


def pack(operations: Sequence[Operation[Any]]) -> list[bytes | memoryview]:
    """The payload of each operation.

    Raises:
        RuntimeError: there is no memory for them, or tensors were changed that should have been left alone.
    """
    payloads: list[bytes | memoryview] = []
    for batcher, alike in groupby(operations, attrgetter("batcher")):
        batch = list(alike)
        if batcher is None or len(batch) == 1:
            payloads += [operation.payload for operation in batch]
        else:
            payloads += batcher.pack(batch)
    return payloads


def _pack(gathered: Sequence[_Gathered]) -> Sequence[bytes | memoryview | Exception]:
    """The payload of each operation, or why there is none."""
    operations = [operation for operation, _, _ in gathered]
    try:
        return pack(operations)
    except Exception:  # noqa: BLE001 - whatever it is, it concerns some of them, and not their neighbours
        return [_read_payload(operation) for operation in operations]


def _read_payload(operation: Operation[Any]) -> bytes | memoryview | Exception:
    try:
        return operation.payload
    except Exception as error:  # noqa: BLE001 - all ranks that wait for the operation get it
        return error.with_traceback(None)


def _close(pieces: _Pieces, length: int) -> _Pieces:
    """The frame of some questions; nothing where there are none."""
    return [wire.HEADER.pack(length, Frame.ASK), *pieces] if pieces else []


# Finishes operations: the results; None where that fails for one of them: then each is finished by itself.
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
    def payloads(self) -> Iterable[memoryview]:
        """What came with each."""
        if len(self.lengths) == 1:
            return (self.payload,)
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
) -> Sequence[Answered]:
    """The answers of one message, in the order of their releases.

    Args:
        released: what has come.
        handles: of the operations.
        list_members: gives a set's ranks.
    """
    terms = []
    for index, handle in enumerate(handles, released.index):
        question = handle.operation.question
        members = list_members(question.process_set)
        terms.append(Release(index, question, members, released.joined, released.sizes, released.value))
    payload = released.payload
    if len(terms) == 1:
        return (Answered(handles, terms, payload, released.lengths, None),)
    ends = [0, *accumulate(released.lengths)]
    answers: list[Answered] = []
    first = 0
    for batcher, alike in groupby(handles, attrgetter("operation.batcher")):
        batch = list(alike)
        last = first + len(batch)
        own = payload[ends[first] : ends[last]]
        unpack = None if batcher is None or len(batch) == 1 else partial(_unpack, batcher, batch, own)
        answers.append(Answered(batch, terms[first:last], own, released.lengths[first:last], unpack))
        first = last
    return answers


def _unpack(batcher: Batcher, handles: Sequence[Handle[Any]], payload: memoryview) -> Sequence[object] | None:
    """See `Unpack`."""
    try:
        return batcher.unpack([handle.operation for handle in handles], payload)
    except RuntimeError:
        return None
