"""What survivors of a loss tell about themselves, and what all of them are told to do: values without rules.

The rules that lead from the one to the other are in `verdict.py`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Wish(StrEnum):
    """What a worker that joins wants of the next generation."""

    BEGIN = "begin"  # it called `init()`: at first, or after `shutdown()`
    FORM = "form"  # it was interrupted before it was connected to the generation's others: it has done nothing in it
    CONTINUE = "continue"  # it was interrupted: its operations are suspended, and it can go on where it stands
    RESIZE = "resize"  # at a commit all have seen that the job may grow or shrink: it begins the function again
    RESTORE = "restore"  # an operation has failed for good: it has returned to its last commit, and begins again


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that this worker has asked for and that is not done here.

    ranks: the members of its process set, by their ranks in the interrupted generation.
    name: as it travels, for example "allreduce.loss"; in its set no other pending operation of this rank has it.
    title: as messages call it, for example "allreduce 'loss'".
    number: which commit round this is, counted from 1 in its set; 0 for every other operation.
    index: its place in the generation's order, when it was released; None before.
    root: the rank whose data it needs, as a broadcast does; None where any survivors will do.
    obstacle: why it cannot be run again here, as the end of a sentence ("its tensor was changed in place"); "" when
        it can.
    """

    ranks: tuple[int, ...]
    name: str
    title: str
    number: int = 0
    index: int | None = None
    root: int | None = None
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class CompletedOperation:
    """One of the operations that were done last on this worker: its result may have been used.

    ranks, name, number: as of a pending one.
    index: its place in the generation's order.
    answer: what the sequencer has answered, where nothing else makes the result, and where it is short: whoever still
        waits can go on with it; b"" otherwise.
    """

    ranks: tuple[int, ...]
    name: str
    index: int
    number: int = 0
    answer: bytes = b""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker tells when it joins: a snapshot, after which nothing of the old generation becomes done here.

    trouble: what it has noticed by itself, in one sentence without a full stop; "" when it was only told.
    has_state: it is inside a function that begins again after an exception (`hvd.elastic.run`).
    pending: but not the optimizer's reductions that its next commit round would cover: they are made anew as a whole,
        unless that is done.
    seen: the highest index of a release that it has heard of; -1 for none.
    floor: `completed` lists all that were done here with this index or a higher one.
    is_blank: it was taken in later, and has not yet received the others' state: nobody may copy from it.
    commits: how often its program has committed its state, since it began.
    """

    wish: Wish = Wish.BEGIN
    trouble: str = ""
    has_state: bool = False
    pending: tuple[PendingOperation, ...] = ()
    completed: tuple[CompletedOperation, ...] = ()
    seen: int = -1
    floor: int = 0
    is_blank: bool = False
    commits: int = 0


class Decision(StrEnum):
    """What all members of a generation do when it is published."""

    BEGIN = "begin"  # start as they are: all have called `init()`
    RETRY = "retry"  # run again whatever is pending, but for what the verdict calls done; nobody notices
    RESIZE = "resize"  # what is pending raises HostsUpdatedInterrupt: begin the function again, with the state as it is
    RESTORE = "restore"  # what is pending raises HorovodInternalError: the same, with the state as at the last commit


@dataclass(frozen=True, slots=True)
class Done:
    """Done for all survivors that still wait for it: a commit round, or what some have done, and all can.

    ranks: the members of its process set, by their ranks in the old generation.
    number: of the commit round; 0 for all else.
    name: as it travels; "" for a commit round.
    answer: what the sequencer has answered to those who have done it; b"" for a barrier. Of a commit round, what those
        who have done it tell of it: that a stop notice had come before.
    """

    ranks: tuple[int, ...]
    number: int
    name: str = ""
    answer: bytes = b""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all members of a generation do with what the one before has left; the same for all.

    survivors: of a RETRY: its members' ranks in the old generation, in the order of the new one.
    done: of a RETRY.
    removed_only: of a RESIZE: nobody has come, so that the state need not be synchronised.
    reason: one sentence without a full stop, for people.
    """

    decision: Decision
    survivors: tuple[int, ...] = ()
    done: tuple[Done, ...] = ()
    removed_only: bool = False
    reason: str = ""
