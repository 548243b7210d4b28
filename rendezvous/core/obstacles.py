"""What of a generation's unfinished operations is done, what can be run again, and what stands in the way of it."""

from rendezvous.core.reports import Done, PendingOperation
from rendezvous.core.survivors import Survivors

BARRIER = "barrier."  # how the names of barriers begin


def find_contradiction(survivors: Survivors) -> str | None:
    """Why the reports cannot all be true: somebody has seen a round committed that another never asked for."""
    for rank, done in survivors.list_completed_rounds():
        if survivors.find_least_round(done.ranks) >= done.number:
            continue
        for other in survivors.list_members(done.ranks):
            is_known = survivors.find_round(other, done.ranks) >= done.number
            if not is_known and survivors.reports[other].floor <= done.index:
                return (
                    f"rank {rank} has committed step {done.number} and rank {other} has not even finished it, which "
                    "cannot be: this is a fault of hvdrun, and going on would be a guess"
                )
    return None


def find_done(survivors: Survivors) -> tuple[Done, ...]:
    """The pending commit rounds that count as done, and what some have done and all can."""
    found: dict[Done, None] = {}
    for rank, operation in survivors.list_pending():
        if operation.number:
            if _is_committed(survivors, operation):
                answer = survivors.find_answer(rank, operation)
                found[Done(operation.ranks, operation.number, answer=answer)] = None
        elif _is_passed(survivors, rank, operation):
            found[Done(operation.ranks, 0, operation.name)] = None
        elif answer := survivors.find_answer(rank, operation):
            found[Done(operation.ranks, 0, operation.name, answer)] = None
    return tuple(sorted(found, key=lambda done: (done.ranks, done.number, done.name)))


def find_obstacle(survivors: Survivors) -> str | None:
    """Why the survivors cannot go on where they stand, naming the operation and the rank; None when they can."""
    for rank, operation in survivors.list_pending():
        reason = _explain_obstacle(survivors, rank, operation)
        if reason is not None:
            return f"{operation.title} cannot be repeated on rank {rank}: {reason}"
    return None


def _explain_obstacle(survivors: Survivors, rank: int, operation: PendingOperation) -> str | None:
    ahead = survivors.find_ahead(rank, operation)
    if ahead is not None:
        return f"rank {ahead} is too far ahead to know whether it has done it"
    if _is_passed(survivors, rank, operation) or (operation.number and _is_committed(survivors, operation)):
        return None
    if survivors.find_answer(rank, operation):
        return None
    if operation.obstacle:
        return operation.obstacle
    lost = survivors.find_lost(operation.ranks)
    if lost is not None and not survivors.is_everybody(operation.ranks):
        return f"rank {lost} of its process set is gone"
    if operation.root is not None and operation.root not in survivors.reports:
        return f"rank {operation.root}, whose data it needs, is gone"
    user = None if operation.number else survivors.find_user(rank, operation)
    return None if user is None else f"rank {user} has done it already, and may have used the result"


def _is_committed(survivors: Survivors, operation: PendingOperation) -> bool:
    """Every survivor of the set has asked for this commit round: its step was finished everywhere."""
    return survivors.find_least_round(operation.ranks) >= operation.number


def _is_passed(survivors: Survivors, rank: int, operation: PendingOperation) -> bool:
    """It is a barrier that somebody has passed: all had come to it."""
    return operation.name.startswith(BARRIER) and survivors.is_done_elsewhere(rank, operation)
