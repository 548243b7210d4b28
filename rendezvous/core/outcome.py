"""How a job ended, and why: the exit code and the first cause."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from signal import SIGRTMIN, Signals

from rendezvous.core.model import Worker

SIGNAL_OFFSET = 128
SIGINT, SIGABRT, SIGUSR2, SIGTERM = 2, 6, 12, 15
_VIOLENT = frozenset({4, 7, 9, 11})  # SIGILL, SIGBUS, SIGKILL, SIGSEGV
SIGKILL = 9  # with which an agent, or its watchdog, kills the workers of a lost host
FAILURE = 1
TEMPORARY_FAILURE = 75
START_TIMED_OUT = 124
_ENDED_FROM_OUTSIDE = frozenset({129, 130, 137, 143, 152})  # by SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGXCPU

_SIGNALS = {known.value: known.name for known in Signals}


class Cause(StrEnum):
    """What decided the outcome."""

    SUCCEEDED = "succeeded"
    WORKER_FAILED = "worker failed"
    COMMAND_NOT_STARTED = "command not started"
    WORKER_KILLED = "worker killed"  # or judged to have failed: its error says why
    HOST_LOST = "host lost"
    START_TIMED_OUT = "start timed out"
    STOPPED = "stopped"
    NOT_RECOVERED = "not recovered"
    STATE_LOST = "state lost"
    FAILS_AGAIN = "fails again"
    RESETS_EXHAUSTED = "resets exhausted"
    TOO_FEW_WORKERS = "too few workers"


@dataclass(frozen=True, slots=True)
class Blame:
    """Which other part of the job made a program fail, as its worker has reported.

    reason: one sentence, without a full stop.
    ranks: of the generation; empty if it is the sequencer, or the way to it.
    """

    reason: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended.

    exit_code: of hvdrun.
    reason: one sentence.
    worker, rank, returncode: those of the worker that failed first, if one did; returncode as waitpid returns it.
    host: the host that was lost first, or whose agent got a signal, if that is the cause.
    message: why that worker's program failed, as it has reported that.
    blame: which other part of the job made that worker fail; None if none is known to.
    evidence: what the kernel of its host knows of its end, in whole sentences.
    """

    exit_code: int
    cause: Cause
    reason: str
    worker: Worker | None = None
    rank: int | None = None
    returncode: int | None = None
    host: str | None = None
    message: str = ""
    blame: Blame | None = None
    evidence: str = ""

    @property
    def is_interrupt(self) -> bool:
        """The user pressed Ctrl-C in hvdrun."""
        return self.cause is Cause.STOPPED and self.exit_code == SIGNAL_OFFSET + SIGINT and self.host is None

    @property
    def certainty(self) -> int:
        """How sure it is that this end did not follow from another one: of two of a moment, the surer is the cause.

        A worker may know what made it fail. Peers of a lost worker end with an exit code, or by the SIGABRT of NCCL's
        watchdog; a lost host, or another signal, follows from nothing else.
        """
        if self.blame is not None:
            return -1
        if self.cause is Cause.NOT_RECOVERED and self.worker is None and self.host is None:
            return 0
        if self.cause is not Cause.WORKER_FAILED or self.returncode is None:
            return 2
        number = find_signal(self.returncode)
        if number is None:
            return 0
        if number == SIGABRT:
            return 1
        return 2

    @property
    def is_violent(self) -> bool:
        """The worker was killed, or has crashed: neither a request to end nor the loss of a peer has this effect."""
        return self.returncode is not None and find_signal(self.returncode) in _VIOLENT

    @property
    def stop_signal(self) -> int:
        """The first signal to the remaining workers; none gets a second SIGINT."""
        if self.is_interrupt:
            return SIGINT
        return SIGTERM


def conclude(first: Outcome | None, *, has_stopped: bool) -> Outcome:
    """The outcome of a job whose workers have all ended.

    first: the first failure since the newest generation, if there is one.
    has_stopped: there was a stop notice, and workers have exited because of it. A kill from outside belongs to it then.
    """
    if first is not None and not (has_stopped and first.exit_code in _ENDED_FROM_OUTSIDE):
        return first
    if has_stopped:
        return end_as_noticed()
    return succeed()


def exit_code(returncode: int) -> int:
    """A process' exit code as a shell reports it: 128 + n for signal n."""
    if returncode >= 0:
        return returncode
    return SIGNAL_OFFSET - returncode


def describe_returncode(returncode: int) -> str:
    """A returncode in words: `exit code 3`, `killed by SIGKILL (signal 9)`."""
    number = find_signal(returncode)
    if returncode < 0:
        return f"killed by {_name_signal(-returncode)}"
    if number is not None:
        return f"exit code {returncode}, with which a shell reports {_name_signal(number)}"
    return f"exit code {returncode}"


def describe_end(returncode: int) -> str:
    """The end of a process of hvdrun's own in words: `ended with exit code 3`, `ended with SIGSEGV (signal 11)`."""
    how = f"exit code {returncode}" if returncode >= 0 else _name_signal(-returncode)
    return f"ended with {how}"


def find_signal(returncode: int) -> int | None:
    """The signal that killed a worker, or the program that a worker's shell waited for; None if none did."""
    if returncode < 0:
        return -returncode
    number = returncode - SIGNAL_OFFSET
    if number in _SIGNALS:
        return number
    return None


def name_signal(number: int) -> str:
    """A signal's name: `SIGTERM`, `SIGRTMIN+3`."""
    return _SIGNALS.get(number, f"SIGRTMIN{number - SIGRTMIN:+}")


def _name_signal(number: int) -> str:
    return f"{name_signal(number)} (signal {number})"


def describe_ranks(ranks: Iterable[int]) -> str:
    """Ranks in words: `rank 3`, `ranks 0, 2-7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"rank{'s' if sum(map(len, runs)) > 1 else ''} {', '.join(parts)}"


def describe_loss(worker: Worker, rank: int, returncode: int, error: str | None) -> str:
    """A worker's failure in one sentence without a full stop; the arguments are those of `Exited`.

    Message: rank RANK (HOST:SLOT) was lost: HOW
    Cause: A worker of an elastic job failed, was killed, or stopped.
    Remedy: None, if the job continues. See the worker's last lines.
    """
    if error is None:
        how = describe_returncode(returncode)
    else:
        how = error.rstrip(".")
    return f"rank {rank} ({worker}) was lost: {how}"


def succeed() -> Outcome:
    """All workers exited with 0."""
    return Outcome(0, Cause.SUCCEEDED, "all workers exited with 0")


def blame_worker(
    worker: Worker, rank: int, returncode: int, error: str | None = None, *, cannot_start: bool = False
) -> Outcome:
    """A worker failed, which ends the job; the arguments are those of `Exited`.

    Message: rank RANK (HOST:SLOT) was killed by SIGKILL (signal 9)
    Message: rank RANK (HOST:SLOT) failed with exit code CODE
    Cause: The elastic job cannot continue without this worker.
    Remedy: See the rest of the sentence, and the worker's last lines.
    """
    if error is not None and cannot_start:
        cause, reason = Cause.COMMAND_NOT_STARTED, error
    elif error is not None:
        cause, reason = Cause.WORKER_KILLED, describe_loss(worker, rank, returncode, error)
    elif returncode < 0:
        cause, reason = Cause.WORKER_FAILED, f"rank {rank} ({worker}) was {describe_returncode(returncode)}"
    else:
        cause, reason = Cause.WORKER_FAILED, f"rank {rank} ({worker}) failed with exit code {returncode}"
    return Outcome(exit_code(returncode), cause, reason, worker, rank, returncode)


def blame_host(host: str, reason: str, *, is_refused: bool = False) -> Outcome:
    """A host was lost, or (is_refused) cannot be used."""
    what = "is not used" if is_refused else "was lost"
    return Outcome(TEMPORARY_FAILURE, Cause.HOST_LOST, f"host {host} {what}: {reason}", host=host)


def describe_silence(lease_seconds: float) -> str:
    """Why a host is lost whose agent's lease has run out."""
    return f"its agent was silent for {lease_seconds:g} s (--lease)"


def time_out(reason: str) -> Outcome:
    """The job did not start in time."""
    return Outcome(START_TIMED_OUT, Cause.START_TIMED_OUT, reason)


def lack_slots(offered: int, needed: int, limit_seconds: float) -> Outcome:
    """The hosts have offered too few slots to start for the elastic timeout."""
    slots = "1 slot" if needed == 1 else f"{needed} slots"
    reason = (
        f"the hosts offered only {offered}: add hosts, or start with fewer workers (-np, --min-np)"
        if offered
        else "no host was named: check that the discovery script answers, or that agents join"
    )
    return time_out(f"the job needs {slots} to start, but for {limit_seconds:g} s (--elastic-timeout) {reason}")


def lack_workers(have: int, needed: int, limit_seconds: float, reason: str) -> Outcome:
    """Too few workers had an agent that has reported for the elastic timeout; reason: "" if it is not known."""
    workers, count = "1 worker" if needed == 1 else f"{needed} workers", f"only {have}" if have else "none"
    parts = (
        f"the job needs {workers} to start, but for {limit_seconds:g} s (--elastic-timeout) {count} had an agent",
        reason.rstrip("."),
        "repair the hosts, or start with fewer workers (--min-np)",
    )
    return time_out("; ".join(filter(None, parts)))


def stop(code: int, reason: str) -> Outcome:
    """The job was stopped from outside."""
    return Outcome(code, Cause.STOPPED, reason)


def stop_by_signal(number: int, host: str, reason: str) -> Outcome:
    """A signal to the agent on this host has stopped the job."""
    return replace(stop(SIGNAL_OFFSET + number, reason), host=host)


def end_as_noticed() -> Outcome:
    """The job has stopped after a stop notice, and can be continued later."""
    reason = f"the job has ended, as its stop notice asked (exit code {TEMPORARY_FAILURE}): start it again to continue"
    return Outcome(TEMPORARY_FAILURE, Cause.STOPPED, reason)


def overrun_notice(worker: Worker, rank: int, limit_seconds: float, remedy: str) -> Outcome:
    """A worker has not exited in time after a stop notice: the job ends as after SIGTERM."""
    since = f"{limit_seconds:g} s (--grace) after the stop notice"
    reason = f"rank {rank} ({worker}) was still running {since}: {remedy}"
    return Outcome(SIGNAL_OFFSET + SIGTERM, Cause.STOPPED, reason)


def fail_to_report(worker: Worker, rank: int, limit_seconds: float) -> Outcome:
    """A survivor has not joined in time after an interruption or a resize, and is killed."""
    reason = f"rank {rank} ({worker}) did not join the others again within {limit_seconds:g} s"
    return Outcome(TEMPORARY_FAILURE, Cause.WORKER_FAILED, reason, worker, rank)


def fail_to_join(worker: Worker, rank: int, limit_seconds: float) -> Outcome:
    """A worker that was started while others train has not joined them in time, and is killed."""
    reason = f"rank {rank} ({worker}) was started while the others trained, and did not join within {limit_seconds:g} s"
    return Outcome(TEMPORARY_FAILURE, Cause.WORKER_FAILED, f"{reason} (--start-timeout)", worker, rank)


def fail_to_be_added(worker: Worker, rank: int, reason: str) -> Outcome:
    """The others make no progress with this new worker, and it is killed."""
    return Outcome(
        TEMPORARY_FAILURE, Cause.WORKER_FAILED, f"rank {rank} ({worker}) cannot be added: {reason}", worker, rank
    )


def give_up(reason: str, first: Outcome | None) -> Outcome:
    """The job cannot continue.

    first: the failure that led to it, if there is one.
    """
    if first is None:
        return Outcome(TEMPORARY_FAILURE, Cause.NOT_RECOVERED, reason)
    return replace(first, exit_code=TEMPORARY_FAILURE, cause=Cause.NOT_RECOVERED, reason=reason)


def lose_state(reason: str, first: Outcome | None) -> Outcome:
    """No remaining worker has the state of the training.

    If a worker failed itself, it would fail again: the job exits with that worker's code, which invites no retry.
    """
    outcome = replace(give_up(reason, first), cause=Cause.STATE_LOST)
    if first is None or first.cause is not Cause.WORKER_FAILED or first.returncode is None:
        return outcome
    code = exit_code(first.returncode)
    if code not in _ENDED_FROM_OUTSIDE:
        return replace(outcome, exit_code=code)
    return outcome


def fail_again(reason: str, first: Outcome | None) -> Outcome:
    """A training function fails at the same step each time; it would do so in a new job."""
    return replace(give_up(reason, first), exit_code=FAILURE, cause=Cause.FAILS_AGAIN)


def exhaust_resets(limit: int, reason: str, first: Outcome | None) -> Outcome:
    """The reset limit allows no further generation."""
    return replace(give_up(f"{reason}; {describe_reset_limit(limit)}", first), cause=Cause.RESETS_EXHAUSTED)


def describe_reset_limit(resets: int) -> str:
    """Why no further generation is allowed, in one sentence without a full stop."""
    times = "once" if resets == 1 else f"{resets} times"
    if resets:
        return f"the job has been reset {times}, and --reset-limit allows no more"
    return "--reset-limit 0 allows no reset"


def run_short(
    count: int, needed: int, limit_seconds: float, first: Outcome | None, option: str = "--min-np"
) -> Outcome:
    """The job has had too few workers, or slots for a restart, for the elastic timeout; option: that sets the number.

    Message: only COUNT of at least NEEDED workers (--min-np) were there for SECONDS s (--elastic-timeout)
    Cause: Workers were lost, and no slots for new ones came.
    Remedy: Start the job again when there are hosts, with a lower `--min-np` or a longer `--elastic-timeout`.
    """
    sentence = (
        f"only {count} of at least {needed} workers ({option}) were there for {limit_seconds:g} s (--elastic-timeout)"
    )
    reason = sentence
    if first is not None:
        reason = f"{first.reason}; {sentence}"
    return replace(give_up(reason, first), cause=Cause.TOO_FEW_WORKERS)
