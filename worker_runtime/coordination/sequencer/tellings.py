"""What ranks are told besides releases: each answer as frames."""

from collections.abc import Iterator, Mapping, Sequence

from worker_runtime.coordination.ordering.questions import Failure, Refusal, Stopping
from worker_runtime.coordination.sequencer.member import Member
from worker_runtime.coordination.sequencer.payloads import Entry
from worker_runtime.coordination.wire import Frame, encode_index, encode_numbered


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
