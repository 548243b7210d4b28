"""What one rank has to tell the sequencer and has not sent yet: operations become questions, and these frames.

Whether an operation can be put into a question is found out when it is asked for: both sides count questions, so that
one which was counted must be sent. Its values are read only when it is sent, together with those of its neighbours;
where that fails, a FAIL goes in its place, which tells all ranks.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from worker_runtime.coordination import bundles, wire
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.questions import Kind, Signature
from worker_runtime.coordination.wire import Frame
from worker_runtime.errors import UnsendableError

BURST = 256  # questions that are sent at once when more follow: the sequencer takes them up meanwhile
NUMBERS = 2**32  # questions are counted as far, and then anew
_MAX_COUNT = 0xFFFF  # of a question's extents, and of the bytes of its name

_Gathered = tuple[Operation[Any], int, bytes]  # with the number of its signature, and its name as it travels
_Pieces = list[bytes | memoryview]


class Outbox:
    """Frames and questions that were gathered, in their order."""

    def __init__(self) -> None:
        self._signatures: OrderedDict[Signature, int] = OrderedDict()  # the one that was used last at the end
        self._latest: tuple[Signature | None, int] = (None, -1)  # of them: in a burst most are one object
        self._frames: _Pieces = []  # signatures and complete frames
        self._operations: list[_Gathered] = []  # that were asked for after these
        self._asked = 0

    @property
    def asked(self) -> int:
        """How many questions were asked until now."""
        return self._asked

    @property
    def is_full(self) -> bool:
        """Whether so much was gathered that the sequencer may begin with it."""
        return len(self._operations) >= BURST

    def ask(self, operation: Operation[object]) -> int:
        """Gather an operation, whose values are read by `empty`; its number is what answers call it by.

        Raises:
            UnsendableError: no question can be made of it; it was not gathered.
        """
        question = operation.question
        try:
            name = question.name.encode()
            if operation.extents or len(name) > _MAX_COUNT:
                _check(name, operation.extents)
            signature = self._call_signature(question.signature)
        except (TypeError, ValueError, ArithmeticError, RecursionError, struct.error) as error:
            raise UnsendableError(operation.title, str(error)) from None
        self._operations.append((operation, signature, name))
        number, self._asked = self._asked, (self._asked + 1) % NUMBERS
        return number

    def tell(self, kind: Frame, body: bytes = b"") -> None:
        """Gather another frame; it goes after the questions that were gathered before."""
        self._encode_questions()
        self._frames.append(wire.encode_frame(kind, body))

    def empty(self) -> bytes:
        """All that was gathered, to be sent now."""
        self._encode_questions()
        if not self._frames:
            return b""
        data, self._frames = b"".join(self._frames), []
        return data

    def _encode_questions(self) -> None:
        """Make frames of the operations that were gathered."""
        gathered, self._operations = self._operations, []
        if not gathered:
            return
        frames: _Pieces = []
        pieces: _Pieces = []
        length = 0
        try:
            for (operation, signature, name), payload in zip(gathered, _pack(gathered), strict=True):
                process_set, factors = operation.question.process_set, operation.question.factors
                if isinstance(payload, Exception):
                    piece: bytes | memoryview = b""
                    head = wire.encode_question(self._call_failure(payload), process_set, name)
                else:
                    piece = payload
                    head = wire.encode_question(
                        signature, process_set, name, operation.extents, len(piece), factors=factors
                    )
                if length + len(head) + len(piece) > wire.MAX_FRAME_BYTES:
                    frames += _close(pieces, length)
                    pieces, length = [], 0
                pieces += (head, piece)
                length += len(head) + len(piece)
            frames += _close(pieces, length)
        except BaseException:  # of a signal's handler: what was counted must be sent
            self._operations[:0] = gathered
            raise
        self._frames += frames

    def _call_failure(self, error: Exception) -> int:
        """The signature of the question that goes in the place of an operation whose values cannot be read."""
        return self._call_signature(Signature(Kind.FAIL, note=f"{type(error).__name__}: {error}"))

    def _call_signature(self, signature: Signature) -> int:
        """Its number; the sequencer is told of it when it is new, and may have to forget the one that is oldest."""
        latest, number = self._latest
        if signature is latest:
            return number
        signatures = self._signatures
        known = signatures.get(signature)
        if known is None:
            is_full = len(signatures) >= wire.MAX_SIGNATURES
            known = next(iter(signatures.values())) if is_full else len(signatures)
            frame = wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(known, signature))
            if is_full:  # none that was gathered: that was used later
                signatures.popitem(last=False)
            signatures[signature] = known  # now that it could be encoded
            self._frames.append(frame)
        else:
            signatures.move_to_end(signature)
        self._latest = signature, known
        return known


def _check(name: bytes, extents: Sequence[int]) -> None:
    """Make sure that these can be put into a question.

    Raises:
        ValueError: there is too much of them.
        struct.error: an extent is no integer of 64 bits.
    """
    if len(name) > _MAX_COUNT:
        raise ValueError(f"its name has {len(name)} bytes, and {_MAX_COUNT} are possible")
    if len(extents) > _MAX_COUNT:
        raise ValueError(f"it has {len(extents)} tensors or splits, and {_MAX_COUNT} are possible")
    struct.pack(f"<{len(extents)}q", *extents)


def _pack(gathered: Sequence[_Gathered]) -> Sequence[bytes | memoryview | Exception]:
    """The payload of each operation, or why there is none."""
    operations = [operation for operation, _, _ in gathered]
    try:
        return bundles.pack(operations)
    except Exception:  # noqa: BLE001 - whatever it is, it concerns some of them, and not their neighbours
        return [_read_payload(operation) for operation in operations]


def _read_payload(operation: Operation[Any]) -> bytes | memoryview | Exception:
    try:
        return operation.payload
    except Exception as error:  # noqa: BLE001 - those who wait for the operation are told
        return error.with_traceback(None)


def _close(pieces: _Pieces, length: int) -> _Pieces:
    """The frame of some questions; nothing where there are none."""
    return [wire.HEADER.pack(length, Frame.ASK), *pieces] if pieces else []
