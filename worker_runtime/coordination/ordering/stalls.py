"""What people are told when some ranks wait long for others: who is missing, for what, and what they wait for instead.

The words and the form are Horovod's, since people search logs for them. Beyond it, a missing rank that waits itself is
shown with what it waits for: two names that differ by a letter are then seen side by side.
"""

from collections.abc import Callable, Iterable, Sequence

from worker_runtime.coordination.ordering.ordering import Pending
from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Question
from worker_runtime.coordination.ordering.refusals import MOST_NAMED, name_operation, name_ranks


def describe_stall(waiting: Sequence[tuple[Pending, float]], after_seconds: float) -> str | None:
    """The warning about what has waited too long; None when nothing has.

    Args:
        waiting: all that is pending, oldest first, each with how long it has waited, in seconds.
        after_seconds: more than this is too long.
    """
    stalled = _find_stalled(waiting, after_seconds)
    if not stalled:
        return None
    return (
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        f"for remainder of ranks for more than {after_seconds:g} seconds. The ranks that are missing may be slow, or "
        f"stopped, or may have taken another way through the program.\n{_list_missing(waiting, stalled, '')}"
    )


def describe_stall_limit(waiting: Sequence[tuple[Pending, float]], limit_seconds: float) -> str | None:
    """The error that ends the generation because something has waited longer than allowed; None when nothing has.

    Args:
        waiting: all that is pending, oldest first, each with how long it has waited, in seconds.
        limit_seconds: more than this is too long.
    """
    stalled = _find_stalled(waiting, limit_seconds)
    if not stalled:
        return None
    oldest = stalled[0]
    others = f" and {len(stalled) - 1} more" if len(stalled) > 1 else ""
    return (
        f"{name_operation(oldest.question)}{others} waited for {name_ranks(oldest.missing)} for more than "
        f"{limit_seconds:g} seconds, the stall limit. Horovod has been shut down. The ranks that were waited for are "
        f'marked by "!".\n{_list_missing(waiting, stalled, "!")}'
    )


def _find_stalled(waiting: Sequence[tuple[Pending, float]], seconds: float) -> list[Pending]:
    return [pending for pending, waited in waiting if waited > seconds]


def _list_missing(waiting: Sequence[tuple[Pending, float]], stalled: Sequence[Pending], mark: str) -> str:
    """A line for each rank that is missing: what for, and what it waits for itself."""
    missed = _group(stalled, lambda pending: pending.missing)
    awaited = _group((pending for pending, _ in waiting), lambda pending: pending.asked)
    lines = ["Missing ranks:"]
    for rank in sorted(missed):
        itself = f", and waits itself for {_show(awaited[rank])}" if rank in awaited else ""
        lines.append(f"{rank}{mark}: {_show(missed[rank])}{itself}")
    return "\n".join(lines)


def _group(pendings: Iterable[Pending], find_ranks: Callable[[Pending], Iterable[int]]) -> dict[int, list[Question]]:
    """Each rank's questions, in the order in which they came."""
    groups: dict[int, list[Question]] = {}
    for pending in pendings:
        for rank in find_ranks(pending):
            groups.setdefault(rank, []).append(pending.question)
    return groups


def _show(questions: Sequence[Question]) -> str:
    """Names as they travel, which logs and timelines show too; the first few of many."""
    names = (
        question.name
        if question.process_set == GLOBAL_SET
        else f"{question.name} in process set {question.process_set}"
        for question in questions[:MOST_NAMED]
    )
    return f"[{', '.join(names)}{' ...' * (len(questions) > MOST_NAMED)}]"
