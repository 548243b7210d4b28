"""How the rules' answers travel: releases that follow each other as one run, all else as frames of its own.

A burst that is answered whole is numbered but once.
"""

from collections.abc import Iterator, Mapping, Sequence

from worker_runtime.coordination.ordering.questions import Failure, Refusal, Release, Stopping
from worker_runtime.coordination.sequencer.member import Member
from worker_runtime.coordination.sequencer.payloads import Entry
from worker_runtime.coordination.wire import Frame, encode_index, encode_number, encode_numbered, encode_terms

_FULL_BYTES = 1024 * 1024  # of payloads: more than that is told in several


class Run:
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
        """The ranks, and what each is told; all that have asked as many questions are told the same."""
        terms = encode_terms(self.first, self._payloads)
        pieces: dict[int, bytes] = {}
        for (rank, _, _, _), number in zip(self.asked, self._numbers, strict=True):
            if number not in pieces:
                pieces[number] = encode_number(number) + terms
            yield rank, pieces[number]


def _is_plain(release: Release, asked: Sequence[Entry]) -> bool:
    """All members have asked it, with nothing that differs between them."""
    return len(asked) == len(release.members) and not (release.joined or release.extents or release.value)


def tell(
    answer: Refusal | Failure | Stopping, asked: Sequence[Entry], members: Mapping[int, Member]
) -> Iterator[tuple[int, Frame, bytes]]:
    """The ranks that are told of an answer, and what: a frame's type and body.

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
