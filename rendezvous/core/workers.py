"""What is known of each slot's worker: where it stands, what it was in, what it has told of itself."""

from dataclasses import dataclass
from enum import StrEnum

from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Report
from rendezvous.core.verdict import may_begin_again


class Standing(StrEnum):
    """Where a worker stands."""

    INTENDED = "intended"  # to be started, or started and not heard of
    WAITING = "waiting"  # has joined, and waits for the generation that is being formed
    READY = "ready"  # has joined while a generation lives that it is not in, and waits to be taken in
    MEMBER = "member"  # is in the newest generation
    REFUSED = "refused"  # has joined, and was told that it will be in no further generation
    LEAVING = "leaving"  # is intended no more, and is being ended: how it ends is no failure
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The intended incarnation of one slot, and where it stands.

    generation: the newest one that it was a member of; 0 for none.
    has_state: it has said that it can begin again after an exception.
    is_past_state: it had said so, and when it joined last it was not in that function any more.
    has_committed: it has committed steps with the others, as far as is known.
    is_blank: it was taken in later, and has not got the others' state as far as is known.
    report: what it has told of itself when it joined; while it stands WAITING.
    since: when it was first intended, on the job's own clock.
    is_done: it has ended well, by itself: its slot gets no other worker.
    reason: why it is LEAVING, and leaves_by: when its grace is over, on the job's own clock.
    """

    worker: Worker
    assignment: Assignment  # by placement, then that of the newest generation
    standing: Standing = Standing.INTENDED
    returncode: int | None = None
    generation: int = 0
    has_state: bool = False
    is_past_state: bool = False
    has_committed: bool = False
    is_blank: bool = False
    report: Report | None = None
    since: float = 0.0
    is_done: bool = False
    reason: str = ""
    leaves_by: float = 0.0

    @property
    def may_begin_again(self) -> bool:
        """It can go back to a state, or has nothing to go back from."""
        return self.has_state or (self.report is not None and may_begin_again(self.report))
