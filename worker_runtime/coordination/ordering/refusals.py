"""Why an operation is refused, in sentences: what happened, which ranks it is about, what to do."""

from collections.abc import Iterable, Mapping

from worker_runtime.coordination.ordering.questions import GLOBAL_SET, Question

MOST_NAMED = 6  # so many ranks or operations are named; the rest is dots


def name_operation(question: Question) -> str:
    """An operation as people call it: `allreduce 'loss'`, where it travels as "allreduce.loss"."""
    kind, dot, name = question.name.partition(".")
    title = f"{kind} '{name}'" if dot else kind
    return title if question.process_set == GLOBAL_SET else f"{title} in process set {question.process_set}"


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 0, 1, 5`; the first few of many."""
    ordered = sorted(ranks)
    shown = ", ".join(str(rank) for rank in ordered[:MOST_NAMED])
    return f"rank{'s' * (len(ordered) > 1)} {shown}{' ...' * (len(ordered) > MOST_NAMED)}"


def explain_join(question: Question, joined: Iterable[int]) -> str:
    """Somebody has joined, and this operation needs a question of everybody."""
    ranks = sorted(joined)
    return (
        f"{question.signature.kind.name} is not supported with Join at this time: {name_operation(question)} needs "
        f"all members of its process set, and {name_ranks(ranks)} {_have(ranks)} joined. Until all ranks have joined, "
        "use allreduce alone."
    )


def explain_shutdown(question: Question, left: Mapping[int, str]) -> str:
    """Somebody has left who is needed.

    Args:
        question: which needs them.
        left: how each has ended: "ended well"; "" where it has called shutdown().
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(left, key=lambda rank: (bool(left[rank]), rank)):
        ranks.setdefault(left[rank], []).append(rank)
    told = [
        f"{name_ranks(some)} {how}" if how else f"Horovod has been shut down on {name_ranks(some)}"
        for how, some in ranks.items()
    ]
    return (
        f"{', '.join(told[:MOST_NAMED])}{', ...' * (len(told) > MOST_NAMED)}, and {name_operation(question)} needs "
        f"{'it' if len(left) == 1 else 'them'}. All members of a process set must call the same operations before "
        "one of them ends or calls shutdown()."
    )


def explain_removal(question: Question, number: int) -> str:
    """The process set is gone."""
    return (
        f"{name_operation(question)} cannot run: process set {number} has been removed. "
        "Finish all operations of a set on all its members before remove_process_set()."
    )


def explain_failure(question: Question, rank: int) -> str:
    """A rank's call has failed before anything was sent; its FAIL says why: "ValueError: ..."."""
    cause = question.signature.note
    return f"{name_operation(question)} was given up on rank {rank}, before anything was sent: {cause}"


def explain_deadlock(waits: Mapping[int, Question], joined: Iterable[int]) -> str:
    """Every rank waits for an operation that another, which waits too, would have to call.

    Args:
        waits: each waiting rank's operation.
        joined: the ranks that wait in join().
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(waits):
        groups.setdefault(name_operation(waits[rank]), []).append(rank)
    if in_join := sorted(joined):
        groups["all others to join"] = in_join
    told = [f"{name_ranks(ranks)} wait{'s' * (len(ranks) == 1)} for {what}" for what, ranks in groups.items()]
    shown = "; ".join(told[:MOST_NAMED]) + "; ..." * (len(told) > MOST_NAMED)
    return (
        f"Mismatched operations: every rank waits for another: {shown}. "
        "Each operation must be called, under the same name, by all members of its process set."
    )


def _have(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"
