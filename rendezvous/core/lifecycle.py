"""The phases of a job and the states of a worker, as two tables; and the record of each slot's worker."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeAlias, TypeVar

from rendezvous.core.decision import can_restore
from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Report


class Phase(StrEnum):
    """The phase of a job."""

    FORMING = "forming"  # workers are started, or wait until all have joined
    RUNNING = "running"  # a generation trains
    REFORMING = "reforming"  # a generation was interrupted: its survivors report, or wait for new workers
    RESTARTING = "restarting"  # all workers are stopped, to be started again in a new round
    DRAINING = "draining"  # the outcome is decided, and the remaining workers are stopped
    FINISHED = "finished"


class WorkerState(StrEnum):
    """The state of a worker."""

    INTENDED = "intended"  # its start was ordered, and it has not joined
    WAITING = "waiting"  # has joined, and waits for the generation that is being formed
    READY = "ready"  # has joined while a generation trains, and waits to be added
    MEMBER = "member"  # is in the newest generation
    REFUSED = "refused"  # has joined, and no further generation will include it
    LEAVING = "leaving"  # is being stopped: its exit is not a failure
    ENDED = "ended"


S = TypeVar("S", bound=StrEnum)
Transitions: TypeAlias = Mapping[S, Mapping[S, str]]  # from each, to which, and when

_STOP = "the outcome is decided"
_INTERRUPTION = "a member is lost, or cannot continue"
_RESTART = "the job would end by a loss, and may be restarted; or the restart is planned"
PHASES: Transitions[Phase] = {
    Phase.FORMING: {
        Phase.RUNNING: "all workers have joined",
        Phase.REFORMING: _INTERRUPTION,
        Phase.RESTARTING: _RESTART,
        Phase.DRAINING: _STOP,
    },
    Phase.RUNNING: {
        Phase.FORMING: "a member joins again: after `shutdown()`, or at a resize",
        Phase.REFORMING: _INTERRUPTION,
        Phase.RESTARTING: _RESTART,
        Phase.DRAINING: _STOP,
    },
    Phase.REFORMING: {
        Phase.RUNNING: "all survivors have reported, and there is a decision",
        Phase.RESTARTING: _RESTART,
        Phase.DRAINING: _STOP,
    },
    Phase.RESTARTING: {
        Phase.FORMING: "all workers have ended, and there are enough slots",
        Phase.DRAINING: _STOP,
    },
    Phase.DRAINING: {Phase.FINISHED: "all workers have ended, or have had time for it"},
    Phase.FINISHED: {},
}

_REFUSAL = "a member has exited with 0, so that no generation follows"
_END: Mapping[WorkerState, str] = {
    WorkerState.LEAVING: "it is late, its slot is no longer offered, or all are started again",
    WorkerState.ENDED: "its process ends, or its host is lost",
}
WORKER_STATES: Transitions[WorkerState] = {
    WorkerState.INTENDED: {
        WorkerState.WAITING: "it joins before the first generation",
        WorkerState.READY: "it joins while a generation trains",
        WorkerState.REFUSED: _REFUSAL,
        **_END,
    },
    WorkerState.WAITING: {
        WorkerState.MEMBER: "its generation is published",
        WorkerState.REFUSED: _REFUSAL,
        **_END,
    },
    WorkerState.READY: {WorkerState.MEMBER: "it is added to the next generation", **_END},
    WorkerState.MEMBER: {WorkerState.WAITING: "it joins again", WorkerState.REFUSED: _REFUSAL, **_END},
    WorkerState.REFUSED: _END,
    WorkerState.LEAVING: {WorkerState.ENDED: _END[WorkerState.ENDED]},
    WorkerState.ENDED: {WorkerState.INTENDED: "the next worker is started in its slot"},
}


def check_transition(table: Transitions[S], former: S, new: S) -> None:
    """Raise ValueError if the table has no such transition: a rule has a bug."""
    if new is not former and new not in table[former]:
        raise ValueError(f"there is no transition from {former} to {new}")


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The present incarnation of one slot's worker, and its state.

    generation: the newest one that it was a member of; 0 for none.
    has_state: it is in a function that can be called again after an exception.
    had_state: it was in such a function, and had left it when it last joined.
    has_completed_steps: it is known to have completed steps with the others.
    needs_state: it was added later, and is not known to have received the others' state.
    starts_alone: it was started later than the others of its round.
    report: its report when it joined; None unless it is WAITING.
    since: when its start was ordered, on the job's clock.
    is_done: it has exited with 0 by itself; the slot is not reused.
    reason: why it is LEAVING. leaves_by: when its grace is over, on the job's clock.
    """

    worker: Worker
    assignment: Assignment  # by placement, then that of the newest generation
    state: WorkerState = WorkerState.INTENDED
    returncode: int | None = None
    generation: int = 0
    has_state: bool = False
    had_state: bool = False
    has_completed_steps: bool = False
    needs_state: bool = False
    starts_alone: bool = False
    report: Report | None = None
    since: float = 0.0
    is_done: bool = False
    reason: str = ""
    leaves_by: float = 0.0

    @property
    def can_restore(self) -> bool:
        """Whether the worker has a state to restore, or has done nothing that it would have to undo."""
        return self.has_state or (self.report is not None and can_restore(self.report))

    def wait(self, report: Report) -> Self:
        """The record of a member that has joined with this report."""
        return replace(
            self,
            state=WorkerState.WAITING,
            report=report,
            has_state=report.has_state,
            had_state=not report.has_state and (self.has_state or self.had_state),
            needs_state=report.needs_state or (self.needs_state and not report.has_state),
        )
