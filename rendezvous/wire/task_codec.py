"""Messages of tasks: each is a stream whose first message has all but data, and the others nothing else."""

from collections.abc import AsyncIterator, Iterator

from protos import rendezvous_pb2 as pb
from rendezvous.errors import WireError
from rendezvous.wire.membership import decode_worker, encode_worker
from rendezvous.wire.tasks import OutcomeHead, Task


def encode_task(task: Task) -> Iterator[pb.TaskPart]:
    """The messages of a task."""
    yield pb.TaskPart(number=task.number)
    for piece in task.pieces():
        yield pb.TaskPart(data=piece)


def encode_outcome(head: OutcomeHead, pieces: Iterator[bytes]) -> Iterator[pb.OutcomePart]:
    """The messages of an outcome."""
    yield pb.OutcomePart(
        worker=encode_worker(head.worker),
        number=head.number,
        size=head.size,
        failed=head.failed,
        follows_another=head.follows_another,
    )
    for piece in pieces:
        yield pb.OutcomePart(data=piece)


def decode_outcome_head(message: pb.OutcomePart) -> OutcomeHead:
    """What the first message of an outcome says."""
    if not message.HasField("worker") or not message.number:
        raise WireError("an outcome without worker or number")
    return OutcomeHead(
        decode_worker(message.worker), message.number, message.size, message.failed, message.follows_another
    )


async def read_data(parts: AsyncIterator[pb.OutcomePart]) -> AsyncIterator[bytes]:
    """The bytes of the messages after the first."""
    async for part in parts:
        if part.HasField("worker"):
            raise WireError("an outcome within an outcome")
        yield part.data
