"""One rank that has proved itself: its connection, what its numbers mean, and how answers travel to it.

Releases that follow each other travel as one run, all else as frames of its own. A burst that is answered whole is
numbered but once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from worker_runtime.coordination.ordering.questions import Failure, Question, Refusal, Release, Signature, Stopping
from worker_runtime.coordination.sequencer.connection import Connection
from worker_runtime.coordination.sequencer.payloads import Entry, check_signature
from worker_runtime.coordination.wire import (
    HEADER,
    MAX_SIGNATURES,
    Farewell,
    Frame,
    ProtocolError,
    decode_head,
    decode_signature,
    encode_frame,
    encode_index,
    encode_number,
    encode_numbered,
    encode_terms,
)

MAX_PENDING = 1_000_000  # questions of one rank
NUMBERS = 1 << 32  # a question's number has 32 bits, and begins at 0 again after them
_MAX_SHARED = 4 * MAX_SIGNATURES  # signatures of all members
_MAX_KNOWN_QUESTIONS = 8192  # a script's own names recur with every step; numbered ones never do
_FULL_FRAME_BYTES = 16 * 1024 * 1024  # of releases: then another frame begins

Key = tuple[int, str]  # set and name


@dataclass(slots=True, eq=False)
class Member:
    """A rank as the sequencer sees it.

    pending: what it has asked and not been answered, oldest first.
    asked: the number of its next question.
    has_left: it has said goodbye, so the end of its connection says nothing more.
    farewell: what the end of its connection will mean; None as long as that is a loss.
    is_undecided: that goodbye holds only if its process ends well, which is not known yet.
    questions: known ones, by their heads.
    releases: ready to be sent, piece by piece.
    """

    rank: int
    connection: Connection
    pending: dict[Key, Entry] = field(default_factory=dict)
    asked: int = 0
    has_left: bool = False
    farewell: Farewell | None = None
    is_undecided: bool = False
    questions: dict[bytes, tuple[Question, Key]] = field(default_factory=dict)
    releases: list[bytes] = field(default_factory=list)
    _signatures: dict[int, Signature] = field(default_factory=dict)
    _frames: list[bytes] = field(default_factory=list)

    def learn_signature(self, body: memoryview, known: dict[Signature, Signature]) -> None:
        """Note what a number calls from now on.

        Args:
            body: of a SIGNATURE.
            known: of all members, so that equal ones are one object, which is quickly compared.

        Raises:
            ProtocolError: it is none, or its number is too large.
        """
        number, signature = decode_signature(body)
        check_signature(signature)
        if number >= MAX_SIGNATURES:
            raise ProtocolError(f"a rank may have {MAX_SIGNATURES} signatures")
        if len(known) >= _MAX_SHARED:
            known.clear()  # equal ones are equal even when they are two objects
        if number in self._signatures:
            self.questions.clear()  # some were of the signature that the number has called before
        self._signatures[number] = known.setdefault(signature, signature)

    def learn_question(self, head: bytes) -> tuple[Question, Key]:
        """Note a question that is asked for the first time in a while.

        Raises:
            ProtocolError: its signature's number calls nothing, or the name is no text.
        """
        number, process_set, name, factors = decode_head(head)
        signature = self._signatures.get(number)
        if signature is None:
            raise ProtocolError(f"there is no signature of the number {number}")
        if len(self.questions) >= _MAX_KNOWN_QUESTIONS:
            self.questions.clear()
        known = self.questions[head] = Question(process_set, name, signature, factors), (process_set, name)
        return known

    def find_pending(self, number: int) -> Key | None:
        """The pending question of a number; None where it has been answered."""
        return next((key for key in reversed(self.pending) if self.pending[key][1] == number), None)

    def put(self, kind: Frame, body: bytes) -> None:
        """Have another frame ready to be sent, after what was put before."""
        self._close_releases()
        self._frames.append(encode_frame(kind, body))

    def flush(self) -> None:
        """Send what is ready.

        Raises:
            ConnectionEndedError: the connection is broken, or the rank reads too slowly.
        """
        self._close_releases()
        if self._frames:
            data, self._frames = b"".join(self._frames), []
            self.connection.send(data)

    def _close_releases(self) -> None:
        """Make a frame of the releases, or several of many bytes; each piece is one whole release."""
        pieces, self.releases = self.releases, []
        length, first = 0, 0
        for end, piece in enumerate(pieces):
            if length + len(piece) > _FULL_FRAME_BYTES and length:
                self._frames += (HEADER.pack(length, Frame.RELEASES), *pieces[first:end])
                length, first = 0, end
            length += len(piece)
        if length:
            self._frames += (HEADER.pack(length, Frame.RELEASES), *pieces[first:])


_FULL_BYTES = 1024 * 1024  # of payloads: more than that is sent in several


class ReleaseRange:
    """Releases of consecutive indices, whose questions have consecutive numbers on every rank that asked them.

    Args:
        release: the first one.
        asked: the questions that it answers.
        payload: of its answer.
    """

    __slots__ = ("_bytes", "_is_plain", "_numbers", "_payloads", "asked", "first")

    def __init__(self, release: Release, asked: Sequence[Entry], payload: bytes) -> None:
        self.first = release
        self.asked = asked
        self._numbers = [number for _, number, _, _ in asked]
        self._payloads = [payload]
        self._bytes = len(payload)
        self._is_plain = _is_plain(release, asked)

    def take(self, release: Release, asked: Sequence[Entry], payload: bytes) -> bool:
        """Add the next release, if it belongs here."""
        count = len(self._payloads)
        if (
            not self._is_plain
            or self._bytes > _FULL_BYTES
            or release.members is not self.first.members
            or [number - count for _, number, _, _ in asked] != self._numbers
            or not _is_plain(release, asked)
        ):
            return False
        self._payloads.append(payload)
        self._bytes += len(payload)
        return True

    def encode(self) -> Iterator[tuple[int, bytes]]:
        """The ranks, and what each gets; all ranks that have asked as many questions get the same bytes."""
        terms = encode_terms(self.first, self._payloads)
        pieces: dict[int, bytes] = {}
        for (rank, _, _, _), number in zip(self.asked, self._numbers, strict=True):
            if number not in pieces:
                pieces[number] = encode_number(number) + terms
            yield rank, pieces[number]


def _is_plain(release: Release, asked: Sequence[Entry]) -> bool:
    """All members have asked it, with nothing that differs between them."""
    return len(asked) == len(release.members) and not (release.joined or release.sizes or release.value)


def make_frames(
    answer: Refusal | Failure | Stopping, asked: Sequence[Entry], members: Mapping[int, Member]
) -> Iterator[tuple[int, Frame, bytes]]:
    """An answer other than a release as frames: for each rank that gets it, the rank and the frame's type and body.

    Args:
        answer: of the rules.
        asked: the questions that it answers.
        members: of the generation.
    """
    match answer:
        case Refusal():
            kind = Frame.DEADLOCK if answer.is_deadlock else Frame.REFUSAL
            for rank, number, _, _ in asked:
                yield rank, kind, encode_numbered(number, answer.reason)
        case Stopping(index):
            body = encode_index(index)
            yield from ((rank, Frame.STOPPING, body) for rank, member in members.items() if not member.has_left)
        case Failure():
            yield from ((rank, Frame.FAILURE, answer.reason.encode()) for rank in members)
