"""How a job ended, and why: the exit code and the first cause."""

import signal
from dataclasses import dataclass, replace
from enum import StrEnum

from rendezvous.core.model import Worker

SIGNAL_OFFSET = 128
SIGINT, SIGABRT, SIGUSR2, SIGTERM = 2, 6, 12, 15
SIGKILL = 9  # by which a host's agent, or its guardian, ends the workers that are left
FAILURE = 1
TEMPORARY_FAILURE = 75
START_TIMED_OUT = 124
_ENDED_FROM_OUTSIDE = frozenset({129, 130, 137, 143})  # by SIGHUP, SIGINT, SIGKILL, SIGTERM

SIGNALS = {known.value: known.name for known in signal.Signals}


class Cause(StrEnum):
    """What decided how the job ended."""

    SUCCEEDED = "succeeded"
    WORKER_FAILED = "worker failed"
    COMMAND_NOT_STARTED = "command not started"
    WORKER_PUT_DOWN = "worker put down"
    HOST_LOST = "host lost"
    START_TIMED_OUT = "start timed out"
    STOPPED = "stopped"
    NOT_RECOVERED = "not recovered"
    STATE_LOST = "state lost"
    FAILS_AGAIN = "fails again"
    RESETS_EXHAUSTED = "resets exhausted"
    TOO_FEW_WORKERS = "too few workers"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended.

    exit_code: what hvdrun exits with.
    reason: one sentence.
    worker, rank, returncode: of the worker that failed first, where one did; returncode as waitpid tells it.
    """

    exit_code: int
    cause: Cause
    reason: str
    worker: Worker | None = None
    rank: int | None = None
    returncode: int | None = None

    @property
    def is_interrupt(self) -> bool:
        """Somebody pressed Ctrl-C."""
        return self.cause is Cause.STOPPED and self.exit_code == SIGNAL_OFFSET + SIGINT

    @property
    def stop_signal(self) -> int:
        """The first signal that the workers get which are left; none gets a second SIGINT."""
        return SIGINT if self.is_interrupt else SIGTERM


def conclude(first: Outcome | None, *, has_stopped: bool) -> Outcome:
    """How a job has ended whose workers have ended by themselves.

    first: the failure that was not made good, if there is one. It may be that of a machine that goes away.
    has_stopped: after a stop notice, workers have ended as they should.
    """
    if first is not None and not (has_stopped and first.exit_code in _ENDED_FROM_OUTSIDE):
        return first
    return end_as_noticed() if has_stopped else succeed()


def exit_code(returncode: int) -> int:
    """A process' exit code as a shell tells it: 128 + n for signal n."""
    return returncode if returncode >= 0 else SIGNAL_OFFSET - returncode


def describe_returncode(returncode: int) -> str:
    """How a worker ended, in words: `exit code 3`, `killed by SIGKILL (signal 9)`."""
    number = find_signal(returncode)
    if returncode < 0:
        return f"killed by {_name_signal(-returncode)}"
    if number is not None:
        return f"exit code {returncode}, which is how a shell tells of {_name_signal(number)}"
    return f"exit code {returncode}"


def find_signal(returncode: int) -> int | None:
    """The signal that ended a worker, or the program that a worker's shell waited for; None when none did."""
    if returncode < 0:
        return -returncode
    number = returncode - SIGNAL_OFFSET
    return number if number in SIGNALS else None


def _name_signal(number: int) -> str:
    return f"{SIGNALS[number]} (signal {number})" if number in SIGNALS else f"signal {number}"


def describe_loss(worker: Worker, rank: int, returncode: int, error: str | None) -> str:
    """A worker's failure in one sentence without a full stop; the arguments are those of `Exited`."""
    how = describe_returncode(returncode) if error is None else error.rstrip(".")
    return f"rank {rank} ({worker}) was lost: {how}"


def succeed() -> Outcome:
    """Every worker ended with 0."""
    return Outcome(0, Cause.SUCCEEDED, "all workers ended well")


def blame_worker(
    worker: Worker, rank: int, returncode: int, error: str | None = None, *, cannot_start: bool = False
) -> Outcome:
    """The first failing worker decides; the arguments are those of `Exited`."""
    if error is not None and cannot_start:
        cause, reason = Cause.COMMAND_NOT_STARTED, error
    elif error is not None:
        cause, reason = Cause.WORKER_PUT_DOWN, f"rank {rank} ({worker}) was ended: {error}"
    elif returncode < 0:
        cause, reason = Cause.WORKER_FAILED, f"rank {rank} ({worker}) was killed by signal {-returncode}"
    else:
        cause, reason = Cause.WORKER_FAILED, f"rank {rank} ({worker}) failed with exit code {returncode}"
    return Outcome(exit_code(returncode), cause, reason, worker, rank, returncode)


def blame_host(host: str, reason: str) -> Outcome:
    """A host was lost, which this job's policy does not allow."""
    return Outcome(TEMPORARY_FAILURE, Cause.HOST_LOST, f"host {host} was lost: {reason}")


def time_out(reason: str) -> Outcome:
    """The job did not start in time."""
    return Outcome(START_TIMED_OUT, Cause.START_TIMED_OUT, reason)


def stop(code: int, reason: str) -> Outcome:
    """Somebody ended the job from outside."""
    return Outcome(code, Cause.STOPPED, reason)


def end_as_noticed() -> Outcome:
    """A stop notice came for the job, and its workers have saved what they need: it may go on another time."""
    reason = f"the job has ended, as its stop notice asked (exit code {TEMPORARY_FAILURE}): start it again to go on"
    return Outcome(TEMPORARY_FAILURE, Cause.STOPPED, reason)


def overrun_notice(worker: Worker, rank: int, limit_seconds: float) -> Outcome:
    """The workers have not ended in time after a stop notice, and are ended as by SIGTERM."""
    since = f"{limit_seconds:g} s (--grace) after the stop notice"
    remedy = "give it longer, or have it save with --checkpoint and hvd.elastic.run, or when hvd.stopping() says so"
    reason = f"rank {rank} ({worker}) had not ended {since}: {remedy}"
    return Outcome(SIGNAL_OFFSET + SIGTERM, Cause.STOPPED, reason)


def fail_to_report(worker: Worker, rank: int, limit_seconds: float) -> Outcome:
    """A survivor has not reported in time, after an interruption or a resize, and was given up."""
    reason = f"rank {rank} ({worker}) did not join the others again within {limit_seconds:g} s"
    return Outcome(TEMPORARY_FAILURE, Cause.WORKER_FAILED, reason, worker, rank)


def fail_to_join(worker: Worker, rank: int, limit_seconds: float) -> Outcome:
    """A worker that was started while others train has not joined them in time, and was given up."""
    reason = f"rank {rank} ({worker}) was started beside the others, and did not join them within {limit_seconds:g} s"
    return Outcome(TEMPORARY_FAILURE, Cause.WORKER_FAILED, f"{reason} (--start-timeout)", worker, rank)


def fail_to_be_taken_in(worker: Worker, rank: int, reason: str) -> Outcome:
    """With this newcomer the others get no further, and it was given up."""
    return Outcome(
        TEMPORARY_FAILURE, Cause.WORKER_FAILED, f"rank {rank} ({worker}) cannot be taken in: {reason}", worker, rank
    )


def give_up(reason: str, first: Outcome | None) -> Outcome:
    """The job cannot go on.

    first: the failure that it has come from, if one has.
    """
    if first is None:
        return Outcome(TEMPORARY_FAILURE, Cause.NOT_RECOVERED, reason)
    return Outcome(TEMPORARY_FAILURE, Cause.NOT_RECOVERED, reason, first.worker, first.rank, first.returncode)


def lose_state(reason: str, first: Outcome | None) -> Outcome:
    """Nobody who is left holds the state of the training.

    One that has failed by itself, and was not ended, would fail again: its exit code does not say that others may try.
    """
    outcome = replace(give_up(reason, first), cause=Cause.STATE_LOST)
    if first is None or first.cause is not Cause.WORKER_FAILED or first.returncode is None:
        return outcome
    code = exit_code(first.returncode)
    return outcome if code in _ENDED_FROM_OUTSIDE else replace(outcome, exit_code=code)


def fail_again(reason: str, first: Outcome | None) -> Outcome:
    """A training function fails at the same place whenever it begins again; so it would when the job is."""
    return replace(give_up(reason, first), exit_code=FAILURE, cause=Cause.FAILS_AGAIN)


def exhaust_resets(limit: int, reason: str, first: Outcome | None) -> Outcome:
    """The job has changed its membership as often as it may."""
    return replace(give_up(f"{reason}; {describe_reset_limit(limit)}", first), cause=Cause.RESETS_EXHAUSTED)


def describe_reset_limit(resets: int) -> str:
    """Why the job may not be formed anew any more, in one sentence without a full stop."""
    times = "once" if resets == 1 else f"{resets} times"
    story = f"the job has been formed anew {times}, and --reset-limit allows no more"
    return story if resets else "--reset-limit 0 does not let the job be formed anew"


def run_short(count: int, needed: int, limit_seconds: float, first: Outcome | None) -> Outcome:
    """The job has had too few workers for too long."""
    sentence = (
        f"only {count} of at least {needed} workers (--min-np) were there for {limit_seconds:g} s (--elastic-timeout)"
    )
    reason = sentence if first is None else f"{first.reason}; {sentence}"
    return replace(give_up(reason, first), cause=Cause.TOO_FEW_WORKERS)
