"""Messages of membership: workers, assignments, endpoints, ends, and what members are told."""

from protos import rendezvous_pb2 as pb
from rendezvous.core.messages import Exited, Joined
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.core.reports import Report
from rendezvous.errors import WireError
from rendezvous.wire.notifications import (
    KEY_BYTES,
    Departed,
    Interrupted,
    Notice,
    Published,
    Refused,
    ResizeOffered,
    SequencerFailed,
    SequencerOpened,
)
from rendezvous.wire.reports import decode_report, decode_verdict, encode_verdict
from rendezvous.wire.text import encode_text

_LAST_PORT = 65_535


def encode_worker(worker: Worker) -> pb.WorkerId:
    """The message of a worker."""
    return pb.WorkerId(host=worker.slot.host, slot=worker.slot.index, incarnation=worker.incarnation)


def decode_worker(message: pb.WorkerId) -> Worker:
    """The worker of a message."""
    if not message.host or not message.incarnation:
        raise WireError("a worker without host or incarnation")
    return Worker(Slot(message.host, message.slot), message.incarnation)


def decode_join(message: pb.JoinRequest) -> Joined:
    """A worker's wish to join, as the core is told; without those that came with it."""
    report = decode_report(message.report) if message.HasField("report") else Report()
    return Joined(decode_worker(message.worker), message.after, report)


def encode_assignment(assignment: Assignment) -> pb.Assignment:
    """The message of an assignment."""
    return pb.Assignment(
        rank=assignment.rank,
        size=assignment.size,
        local_rank=assignment.local_rank,
        local_size=assignment.local_size,
        cross_rank=assignment.cross_rank,
        cross_size=assignment.cross_size,
    )


def decode_assignment(message: pb.Assignment) -> Assignment:
    """The assignment of a message."""
    if message.rank >= message.size:
        raise WireError(f"rank {message.rank} in a generation of {message.size}")
    return Assignment(
        message.rank,
        message.size,
        message.local_rank,
        message.local_size,
        message.cross_rank,
        message.cross_size,
    )


def encode_endpoint(endpoint: Endpoint) -> pb.Endpoint:
    """The message of an endpoint."""
    return pb.Endpoint(address=endpoint.address, port=endpoint.port)


def decode_endpoint(message: pb.Endpoint) -> Endpoint:
    """The endpoint of a message."""
    if not message.address or not 0 < message.port <= _LAST_PORT:
        raise WireError(f"an endpoint without address, or with port {message.port}")
    return Endpoint(message.address, message.port)


def encode_exited(event: Exited) -> pb.Ended:
    """The message of a worker's end."""
    return pb.Ended(
        worker=encode_worker(event.worker),
        returncode=event.returncode,
        error=encode_text(event.error),
        cannot_start=event.cannot_start,
    )


def decode_exited(message: pb.Ended) -> Exited:
    """A worker's end, as the core is told."""
    return Exited(decode_worker(message.worker), message.returncode, message.error or None, message.cannot_start)


def encode_notice(notice: Notice) -> pb.Notice:
    """The message of a notice."""
    match notice:
        case Published(generation, members, key, verdict):
            listed = [
                pb.Member(worker=encode_worker(worker), assignment=encode_assignment(assignment))
                for worker, assignment in members
            ]
            published = pb.Published(generation=generation, members=listed, key=key, verdict=encode_verdict(verdict))
            return pb.Notice(published=published)
        case Interrupted(generation, reason):
            interrupted = pb.Interrupted(generation=generation, reason=encode_text(reason))
            return pb.Notice(interrupted=interrupted)
        case ResizeOffered(generation, number, adds, removes):
            offered = pb.ResizeOffered(generation=generation, number=number, adds=adds, removes=removes)
            return pb.Notice(resize_offered=offered)
        case SequencerOpened(generation, endpoint):
            opened = pb.SequencerOpened(generation=generation, endpoint=encode_endpoint(endpoint))
            return pb.Notice(sequencer_opened=opened)
        case SequencerFailed(generation, reason):
            failed = pb.SequencerFailed(generation=generation, reason=encode_text(reason))
            return pb.Notice(sequencer_failed=failed)
        case Refused(worker, reason):
            return pb.Notice(refused=pb.Refused(worker=encode_worker(worker), reason=encode_text(reason)))
        case Departed(generation, worker, rank):
            departed = pb.Departed(generation=generation, worker=encode_worker(worker), rank=rank)
            return pb.Notice(departed=departed)


def decode_notice(message: pb.Notice) -> Notice:
    """The notice of a message."""
    match message.WhichOneof("notice"):
        case "published":
            return _decode_published(message.published)
        case "interrupted":
            return Interrupted(message.interrupted.generation, message.interrupted.reason)
        case "resize_offered":
            offered = message.resize_offered
            return ResizeOffered(offered.generation, offered.number, offered.adds, offered.removes)
        case "sequencer_opened":
            opened = message.sequencer_opened
            return SequencerOpened(opened.generation, decode_endpoint(opened.endpoint))
        case "sequencer_failed":
            return SequencerFailed(message.sequencer_failed.generation, message.sequencer_failed.reason)
        case "refused":
            return Refused(decode_worker(message.refused.worker), message.refused.reason)
        case "departed":
            departed = message.departed
            return Departed(departed.generation, decode_worker(departed.worker), departed.rank)
        case _:
            raise WireError("a notice of no known kind")


def _decode_published(message: pb.Published) -> Published:
    members = tuple((decode_worker(member.worker), decode_assignment(member.assignment)) for member in message.members)
    return Published(message.generation, members, _check_key(message.key), decode_verdict(message.verdict))


def _check_key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise WireError(f"a generation with a key of {len(key)} bytes")
    return key
