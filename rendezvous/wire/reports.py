"""Messages of what survivors report, and of the verdict on it."""

from functools import lru_cache
from itertools import chain, pairwise

from protos import rendezvous_pb2 as pb
from rendezvous.core.reports import (
    CompletedOperation,
    Decision,
    Done,
    PendingOperation,
    Report,
    Verdict,
    Wish,
)
from rendezvous.errors import WireError
from rendezvous.wire.text import encode_text

_MOST_RANKS = 1_000_000  # a count is short; what it stands for must not fill the memory
_WISHES = {
    Wish.BEGIN: pb.WISH_UNSPECIFIED,
    Wish.FORM: pb.WISH_FORM,
    Wish.CONTINUE: pb.WISH_CONTINUE,
    Wish.RESIZE: pb.WISH_RESIZE,
    Wish.RESTORE: pb.WISH_RESTORE,
}
_DECISIONS = {
    Decision.BEGIN: pb.DECISION_UNSPECIFIED,
    Decision.RETRY: pb.DECISION_RETRY,
    Decision.RESIZE: pb.DECISION_RESIZE,
    Decision.RESTORE: pb.DECISION_RESTORE,
}
_WISHES_BY_NUMBER = {number: wish for wish, number in _WISHES.items()}
_DECISIONS_BY_NUMBER = {number: decision for decision, number in _DECISIONS.items()}


def encode_report(report: Report) -> pb.StateReport:
    """The message of a report."""
    return pb.StateReport(
        wish=_WISHES[report.wish],
        trouble=encode_text(report.trouble),
        has_state=report.has_state,
        pending=map(_encode_pending, report.pending),
        completed=map(_encode_completed, report.completed),
        seen=report.seen,
        floor=report.floor,
        is_blank=report.is_blank,
        commits=report.commits,
    )


def decode_report(message: pb.StateReport) -> Report:
    """The report of a message."""
    if message.wish not in _WISHES_BY_NUMBER:
        raise WireError(f"a wish of kind {message.wish}")
    return Report(
        wish=_WISHES_BY_NUMBER[message.wish],
        trouble=message.trouble,
        has_state=message.has_state,
        pending=tuple(map(_decode_pending, message.pending)),
        completed=tuple(map(_decode_completed, message.completed)),
        seen=message.seen,
        floor=message.floor,
        is_blank=message.is_blank,
        commits=message.commits,
    )


def encode_verdict(verdict: Verdict) -> pb.Verdict:
    """The message of a verdict."""
    return pb.Verdict(
        decision=_DECISIONS[verdict.decision],
        survivors=_encode_runs(verdict.survivors),
        done=[
            pb.Done(ranks=_encode_runs(done.ranks), number=done.number, name=encode_text(done.name), answer=done.answer)
            for done in verdict.done
        ],
        removed_only=verdict.removed_only,
        reason=encode_text(verdict.reason),
    )


def decode_verdict(message: pb.Verdict) -> Verdict:
    """The verdict of a message."""
    if message.decision not in _DECISIONS_BY_NUMBER:
        raise WireError(f"a decision of kind {message.decision}")
    return Verdict(
        decision=_DECISIONS_BY_NUMBER[message.decision],
        survivors=_decode_runs(tuple(message.survivors)),
        done=tuple(Done(_decode_runs(tuple(done.ranks)), done.number, done.name, done.answer) for done in message.done),
        removed_only=message.removed_only,
        reason=message.reason,
    )


def _encode_pending(operation: PendingOperation) -> pb.OperationState:
    return pb.OperationState(
        ranks=_list_ranks(operation.ranks),
        first=_count_first(operation.ranks),
        name=encode_text(operation.name),
        title=encode_text(operation.title),
        number=operation.number,
        index=operation.index,
        root=operation.root,
        obstacle=encode_text(operation.obstacle),
    )


def _decode_pending(message: pb.OperationState) -> PendingOperation:
    _check(message)
    return PendingOperation(
        ranks=_decode_ranks(message),
        name=message.name,
        title=message.title,
        number=message.number,
        index=message.index if message.HasField("index") else None,
        root=message.root if message.HasField("root") else None,
        obstacle=message.obstacle,
    )


def _encode_completed(operation: CompletedOperation) -> pb.OperationState:
    return pb.OperationState(
        ranks=_list_ranks(operation.ranks),
        first=_count_first(operation.ranks),
        name=encode_text(operation.name),
        index=operation.index,
        number=operation.number,
        answer=operation.answer,
    )


def _decode_completed(message: pb.OperationState) -> CompletedOperation:
    _check(message)
    if not message.HasField("index"):
        raise WireError(f"a completed operation {message.name!r} without its place in the order")
    return CompletedOperation(_decode_ranks(message), message.name, message.index, message.number, message.answer)


def _count_first(ranks: tuple[int, ...]) -> int:
    """How many, if these are the ranks from 0 on, as those of everybody are; else 0."""
    return len(ranks) if ranks == _first(len(ranks)) else 0


def _list_ranks(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return () if _count_first(ranks) else ranks


def _decode_ranks(message: pb.OperationState) -> tuple[int, ...]:
    return _first(message.first) if message.first else tuple(message.ranks)


@lru_cache(maxsize=8)
def _first(count: int) -> tuple[int, ...]:
    """One and the same tuple for the thousands of operations of a report."""
    return tuple(range(count))


@lru_cache(maxsize=8)
def _encode_runs(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The first rank and the length of each run of consecutive ranks: every host is told all survivors of a loss."""
    starts = [place for place, rank in enumerate(ranks) if not place or rank != ranks[place - 1] + 1]
    return tuple(chain.from_iterable((ranks[start], end - start) for start, end in pairwise([*starts, len(ranks)])))


@lru_cache(maxsize=8)
def _decode_runs(runs: tuple[int, ...]) -> tuple[int, ...]:
    if len(runs) % 2 or sum(runs[1::2]) > _MOST_RANKS:
        raise WireError(f"runs of ranks that are none: {len(runs)} numbers")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return tuple(chain.from_iterable(range(first, first + count) for first, count in pairs))


def _check(message: pb.OperationState) -> None:
    if not message.ranks and not 0 < message.first <= _MOST_RANKS:
        raise WireError(f"an operation {message.name!r} of nobody")
