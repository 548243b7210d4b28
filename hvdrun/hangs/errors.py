"""The errors of `hvdrun stacks`."""

from typing import ClassVar

from hvdrun.errors import HvdrunError


class JobNotFoundError(HvdrunError):
    """No such job of this user runs on this machine.

    Cause: The job has ended, or its hvdrun runs on another machine, in another container, or for another user.
    Remedy: Run `hvdrun stacks` where hvdrun was started, as the user who started it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str) -> None:
        super().__init__(
            f"no {f'job {job}'.rstrip()} of this user runs on this machine: run hvdrun stacks where hvdrun was "
            "started, as the same user."
        )


class JobNotRespondingError(HvdrunError):
    """The hvdrun of a job does not answer.

    Cause: That process is stopped, or its machine is overloaded.
    Remedy: `kill -CONT` with the number in the message.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, job: str, limit_seconds: float, pid: int) -> None:
        super().__init__(
            f"the job {job} did not answer within {limit_seconds:g} s: look whether its hvdrun, process {pid}, is "
            f"stopped (kill -CONT {pid})."
        )
