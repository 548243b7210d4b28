"""The phases of a job and the states of a worker, as two tables, and what is known of each slot's worker."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeAlias, TypeVar

from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Report
from rendezvous.core.verdict import may_begin_again


class Phase(StrEnum):
    """The phase of a job."""

    FORMING = "forming"  # workers are started, or wait until all have joined
    RUNNING = "running"  # a generation is live
    REFORMING = "reforming"  # a generation was interrupted: its survivors report, or wait for newcomers
    DRAINING = "draining"  # the outcome is decided, and the workers that are left are stopped
    FINISHED = "finished"


class WorkerState(StrEnum):
    """The state of a worker."""

    INTENDED = "intended"  # to be started, or started and not heard of
    WAITING = "waiting"  # has joined, and waits for the generation that is being formed
    READY = "ready"  # has joined beside a live generation, and waits to be taken in
    MEMBER = "member"  # is in the newest generation
    REFUSED = "refused"  # has joined, and will be in no further generation
    LEAVING = "leaving"  # is not wanted any more, and is being stopped: how it ends is no failure
    ENDED = "ended"


S = TypeVar("S", bound=StrEnum)
Transitions: TypeAlias = Mapping[S, Mapping[S, str]]  # from each, to which, and when

_STOP = "the outcome is decided"
_INTERRUPTION = "a member is lost, or cannot go on"
PHASES: Transitions[Phase] = {
    Phase.FORMING: {
        Phase.RUNNING: "all workers have joined",
        Phase.REFORMING: _INTERRUPTION,
        Phase.DRAINING: _STOP,
    },
    Phase.RUNNING: {
        Phase.FORMING: "a member joins again: after `shutdown()`, or at a resize",
        Phase.REFORMING: _INTERRUPTION,
        Phase.DRAINING: _STOP,
    },
    Phase.REFORMING: {
        Phase.RUNNING: "all survivors have reported, and there is a verdict",
        Phase.DRAINING: _STOP,
    },
    Phase.DRAINING: {Phase.FINISHED: "all workers have ended, or have had time for it"},
    Phase.FINISHED: {},
}

_REFUSAL = "a member has ended well, so that no generation follows"
_RETIREMENT = "it is given up, or its slot is not offered any more"
_END = "its process ends, or its host is lost"
WORKER_STATES: Transitions[WorkerState] = {
    WorkerState.INTENDED: {
        WorkerState.WAITING: "it joins before the first generation",
        WorkerState.READY: "it joins beside a generation",
        WorkerState.REFUSED: _REFUSAL,
        WorkerState.LEAVING: _RETIREMENT,
        WorkerState.ENDED: _END,
    },
    WorkerState.WAITING: {
        WorkerState.MEMBER: "its generation is published",
        WorkerState.REFUSED: _REFUSAL,
        WorkerState.LEAVING: _RETIREMENT,
        WorkerState.ENDED: _END,
    },
    WorkerState.READY: {
        WorkerState.MEMBER: "it is taken in",
        WorkerState.LEAVING: _RETIREMENT,
        WorkerState.ENDED: _END,
    },
    WorkerState.MEMBER: {
        WorkerState.WAITING: "it joins again",
        WorkerState.REFUSED: _REFUSAL,
        WorkerState.LEAVING: _RETIREMENT,
        WorkerState.ENDED: _END,
    },
    WorkerState.REFUSED: {WorkerState.LEAVING: _RETIREMENT, WorkerState.ENDED: _END},
    WorkerState.LEAVING: {WorkerState.ENDED: _END},
    WorkerState.ENDED: {WorkerState.INTENDED: "the next worker is started in its slot"},
}


def check_transition(table: Transitions[S], former: S, new: S) -> None:
    """Raise ValueError where the table does not lead from the one to the other: a fault of a rule."""
    if new is not former and new not in table[former]:
        raise ValueError(f"there is no way from {former} to {new}")


def draw(table: Transitions[S]) -> str:
    """The diagram of a table, in lines."""
    width = max(map(len, table))
    return "\n".join(
        f"    {former if number == 0 else '':{width}} -> {new:{width}}  {when}".rstrip()
        for former, ways in table.items()
        for number, (new, when) in enumerate(ways.items())
    )


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The intended incarnation of one slot, and its state.

    generation: the newest one that it was a member of; 0 for none.
    has_state: it is in a function that can begin again after an exception.
    had_state: it was in such a function, and had left it when it joined last.
    has_committed: it has committed steps with the others, as far as is known.
    needs_state: it was taken in later, and does not have the others' state, as far as is known.
    report: its report when it joined; None unless it is WAITING.
    since: when it was first intended, on the job's own clock.
    is_done: it has exited well, by itself; the slot is not reused.
    reason: why it is LEAVING, and leaves_by: when its grace is over, on the job's own clock.
    """

    worker: Worker
    assignment: Assignment  # by placement, then that of the newest generation
    state: WorkerState = WorkerState.INTENDED
    returncode: int | None = None
    generation: int = 0
    has_state: bool = False
    had_state: bool = False
    has_committed: bool = False
    needs_state: bool = False
    report: Report | None = None
    since: float = 0.0
    is_done: bool = False
    reason: str = ""
    leaves_by: float = 0.0

    @property
    def may_begin_again(self) -> bool:
        """It can go back to a state, or has nothing to go back from."""
        return self.has_state or (self.report is not None and may_begin_again(self.report))

    def wait(self, report: Report) -> Self:
        """The member that has joined with this report."""
        return replace(
            self,
            state=WorkerState.WAITING,
            report=report,
            has_state=report.has_state,
            had_state=not report.has_state and (self.has_state or self.had_state),
            needs_state=report.needs_state or (self.needs_state and not report.has_state),
        )
