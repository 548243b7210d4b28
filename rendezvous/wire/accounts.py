"""What the time of workers was spent on: an agent's message to its launcher."""

from dataclasses import dataclass

from rendezvous.core.model import Worker


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """The wait of one worker for another rank.

    rank: of the other worker.
    seconds: in which this worker waited for it.
    steps: in which this worker has waited longest for that rank.
    """

    rank: int
    seconds: float
    steps: int


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """The recovery of one worker after a loss, or after a change of the job's size.

    generation: in which the worker continues.
    reform_seconds: from the interruption until that generation is connected.
    state_seconds: to restore the state, and to send or receive it.
    replay_seconds: for the steps that are repeated.
    """

    generation: int
    reform_seconds: float
    state_seconds: float
    replay_seconds: float


@dataclass(frozen=True, slots=True)
class Account:
    """What the time of one worker was spent on, in seconds of its host's monotonic clock.

    Of a program that does not call `init()`, only the total is known.

    is_measured: the worker has measured the parts.
    has_ended: the worker has ended; else the account is of a worker that runs.
    total_seconds: from the start of its process until its end, or until now.
    start_seconds: until its first step begins, or, without steps, until it is a member of its first generation.
    compute_seconds: in the program's own code, in steps. A step lasts from the end of the one before to its own end.
    waiting_seconds: blocked, until the last rank has asked for the operation.
    communication_seconds: blocked, from then on until the result is there.
    commit_seconds, checkpoint_seconds: to save the state, in memory and on disk.
    recovery_seconds: in `recoveries`, without the steps that are repeated.
    repeated_seconds: in steps whose results are lost; they are not in the other parts.
    idle_seconds: from the end of the program until that of the process.
    steps, repeated_steps: that were taken, and how many of these again.
    waited_for: the ranks for which it has waited longest, by rank.
    recoveries: the latest, in their order.
    """

    worker: Worker
    is_measured: bool = False
    has_ended: bool = False
    total_seconds: float = 0.0
    start_seconds: float = 0.0
    compute_seconds: float = 0.0
    waiting_seconds: float = 0.0
    communication_seconds: float = 0.0
    commit_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    recovery_seconds: float = 0.0
    repeated_seconds: float = 0.0
    idle_seconds: float = 0.0
    steps: int = 0
    repeated_steps: int = 0
    waited_for: tuple[WaitedFor, ...] = ()
    recoveries: tuple[RecoveryTime, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountsReported:
    """The accounts of workers of one host; a later one of the same worker replaces an earlier one."""

    accounts: tuple[Account, ...]
