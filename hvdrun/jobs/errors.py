"""The errors of the programs that find a job: `hvdrun ps`, `hvdrun stacks` and others."""

from collections.abc import Sequence
from typing import ClassVar

from hvdrun.errors import HvdrunError, LaunchError

END_UNKNOWN = 69  # EX_UNAVAILABLE of sysexits.h; a job may end with any code, and no part of hvdrun with this one


class JobNotFoundError(HvdrunError):
    """No such job of this user is known on this machine, or none runs.

    Message: no JOB of this user is known on this machine: hvdrun ps --all lists the jobs; run it where hvdrun was
        started, as the same user.
    Message: no detached job of this user runs on this machine: hvdrun ps --all lists the jobs; run it where hvdrun was
        started, as the same user.
    Cause: The job has ended, or its hvdrun runs on another machine, in another container, or for another user.
    Remedy: `hvdrun ps --all` lists the jobs. Run it where hvdrun was started, as the user who started it.

    Args:
        job: what is looked for, such as "job c0ffee".
        verb: what no such job does.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, verb: str = "is known") -> None:
        super().__init__(
            f"no {job} of this user {verb} on this machine: hvdrun ps --all lists the jobs; run it where hvdrun was "
            "started, as the same user."
        )


class JobNotRespondingError(HvdrunError):
    """The hvdrun of a job does not answer.

    Message: the job JOB did not answer within SECONDS s: look whether its hvdrun, process PID, is stopped (kill -CONT
        PID).
    Message: the job JOB did not answer within SECONDS s: look whether its hvdrun is stopped (ps a, kill -CONT).
    Cause: That process is stopped, or its machine is overloaded.
    Remedy: `kill -CONT` with the number in the message, or `fg` in the terminal of the job.

    Args:
        job: its name.
        limit_seconds: for how long it was asked.
        pid: of its hvdrun; 0 where that takes no connection, and the pid is not known.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, limit_seconds: float, pid: int = 0) -> None:
        state = f", process {pid}, is stopped (kill -CONT {pid})" if pid else " is stopped (ps a, kill -CONT)"
        super().__init__(f"the job {job} did not answer within {limit_seconds:g} s: look whether its hvdrun{state}.")


class JobNotRunningError(HvdrunError):
    """A job that is known does not run now, and so nobody can ask it.

    Cause: The job has ended, or its launcher was killed.
    Remedy: After a kill, `hvdrun resume JOB`, or a moment's wait: the next launcher may be starting.

    Args:
        job: its name.
        reason: half a sentence.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"the job {job} cannot be asked: {reason}.")


class JobElsewhereError(HvdrunError):
    """A detached job has its launcher on another machine.

    Cause: The home is shared, and hvdrun was started on another login node.
    Remedy: Run the same command there.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, machine: str, command: str) -> None:
        super().__init__(f"the job {job} was started on {machine}: run {command} there, as in ssh {machine} {command}.")


class JobNotHereError(HvdrunError):
    """`hvdrun stop --here` has found nothing to stop on this machine.

    Cause: The workers here have ended, they are another user's or another container's, or the job never had any here.
    Remedy: Nothing is to be done. Where the job runs, `hvdrun ps` there lists it.

    Args:
        asked: the name, or its beginning.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, asked: str) -> None:
        super().__init__(f"nothing of {f'a job {asked}'.rstrip()} of this user runs on this machine.")


class JobAttachedError(HvdrunError):
    """A job without `--detach` keeps neither its output nor its end.

    Cause: The job was started without `--detach`.
    Remedy: See its terminal. Start the next one with `--detach`.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, thing: str) -> None:
        super().__init__(f"the job {job} was started without --detach, and keeps no {thing}: see its terminal.")


class JobFolderLostError(HvdrunError):
    """The folder of a detached job that runs cannot be read.

    Cause: It was removed or damaged while the job runs, or it belongs to another container.
    Remedy: `hvdrun stop JOB` stops the job. Its output and its exit code are lost.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, folder: str) -> None:
        super().__init__(
            f"the folder {folder!r} of the job {job} was removed or is damaged: its output and its exit code are lost; "
            f"hvdrun stop {job} stops the job."
        )


class LauncherLostError(HvdrunError):
    """The launcher of a detached job was killed, and nobody knows the exit code.

    Cause: `kill -9`, the kernel for want of memory, a logout where logind kills a user's processes, or a restart of the
        machine.
    Remedy: `hvdrun resume JOB`, within `--server-timeout`: the workers go on so long. `hvdrun logs JOB` has the output
        until then.

    Args:
        job: its name.
        how: what is known of the end, half a sentence.
    """

    exit_code: ClassVar[int] = END_UNKNOWN

    def __init__(self, job: str, how: str) -> None:
        super().__init__(
            f"the launcher of the job {job} {how}: its exit code is not known. hvdrun resume {job} goes on with what "
            f"still runs of it, which ends after --server-timeout or by hvdrun stop --here {job}; hvdrun logs {job} "
            "has the output until then."
        )


class ServersLostError(LaunchError):
    """No server of a detached job has lived to its end.

    Message: NUMBER servers of this job were killed within 60 s, the last one by SIGNAL: the job ends.
    Message: no server of this job could be started: the job ends.
    Cause: Something kills each server of the job, or this machine has no memory, threads or open files left for one.
    Remedy: Look what kills them, as the kernel for want of memory. Start the job again, from its checkpoint if it has
        one.

    Args:
        sentence: why there is no other server.
        code: of the job.
    """

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.exit_code = code  # type: ignore[misc]  # that of its last server


class ResumeRefusedError(HvdrunError):
    """No other server can continue a job.

    Cause: The job has ended, its server runs, it has no journal, another version of hvdrun has started it, or its next
        server would end at once, as with the main program of a container.
    Remedy: See the reason in the sentence. A job with `--checkpoint` continues from its checkpoint when it is started
        again.

    Args:
        job: its name.
        reason: half a sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"the job {job} cannot be resumed: {reason}.")


class JobRunningError(HvdrunError):
    """A job that runs cannot be removed.

    Cause: The job runs, or its launcher was killed and its workers on this machine train on.
    Remedy: Stop it first, with `hvdrun stop JOB`, or, without a launcher, with `hvdrun stop --here JOB`.

    Args:
        job: its name.
        stop: the command that stops it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str, stop: str = "hvdrun stop") -> None:
        super().__init__(f"the job {job} runs: stop it first, with {stop} {job}.")


class JobNeededError(HvdrunError):
    """A lost job cannot be removed while its workers on other hosts may run.

    Cause: The launcher was killed, and by what it has written last, workers on other hosts train on without it.
    Remedy: `hvdrun resume JOB`, and `hvdrun stop JOB` then; or `hvdrun stop --here JOB` on each of the hosts, and
        `hvdrun rm --force JOB` then.

    Args:
        job: its name.
        hosts: their names.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str, hosts: Sequence[str]) -> None:
        super().__init__(
            f"workers of the job {job} may still run on {', '.join(hosts)}: go on with them, with hvdrun resume {job}, "
            f"or remove the job all the same, with hvdrun rm --force {job}."
        )


class OtherContainerError(HvdrunError):
    """The launcher of a job is in another container of this machine.

    Cause: The folder of the detached jobs is shared with another container.
    Remedy: Run the command in that container.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str) -> None:
        super().__init__(f"the launcher of the job {job} is in another container of this machine: stop the job there.")


class DetachRefusedError(LaunchError):
    """`--detach` cannot be used here.

    Cause: A scheduler keeps the job, or hvdrun runs in a worker of another job or as a container's main program.
    Remedy: Leave `--detach` out. With a scheduler, submit a batch script; detach the container.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, reason: str) -> None:
        super().__init__(f"--detach is refused: {reason}.")
