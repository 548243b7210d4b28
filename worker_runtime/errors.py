"""What can go wrong inside a training process; each error builds its own sentence."""

from datetime import timedelta

from worker_runtime.membership import Membership

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective did not complete. Programs written for Horovod catch it by this name."""


class NotInitializedError(HorovodInternalError, ValueError):
    """`rank()`, a collective, or the like was called before `init()` or after `shutdown()`.

    It is both errors because Horovod raises ValueError from `rank()` and HorovodInternalError from a collective.
    """

    def __init__(self) -> None:
        super().__init__(NOT_INITIALIZED)


class InitializationError(ValueError):
    """`init()` did not succeed; ValueError with this beginning is what programs written for Horovod match on."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"Horovod initialization failed: {cause}")


class ForeignWorldError(InitializationError):
    """Another launcher started several workers and does not say how they can meet; training alone would be wrong."""

    def __init__(self, launcher: str, size: int) -> None:
        super().__init__(
            f"{launcher} started this process as one of {size}, but does not say where they can meet; set MASTER_ADDR "
            f"(the host of rank 0) and MASTER_PORT (a free port there), or start the script with 'hvdrun -np {size}'"
        )
        self.launcher = launcher
        self.size = size


class ForeignRankError(InitializationError):
    """Another launcher's variables contradict each other."""

    def __init__(self, launcher: str, rank: int, size: int) -> None:
        super().__init__(
            f"the variables of {launcher} say that this process is rank {rank} of {size}, but the ranks are 0 to "
            f"{size - 1}; unset them to train alone, or start the script with 'hvdrun -np {size}'"
        )
        self.launcher = launcher
        self.rank = rank
        self.size = size


class MeetingError(InitializationError):
    """The members of another launcher's world did not find each other."""

    def __init__(self, launcher: str, where: str, cause: str) -> None:
        super().__init__(f"the workers that {launcher} started could not meet at {where}: {cause}")
        self.where = where


class GroupFormationError(InitializationError):
    """The workers of a generation could not all connect to each other."""

    def __init__(self, membership: Membership, address: str, limit: timedelta, cause: str) -> None:
        numbers = membership.assignment
        super().__init__(
            f"rank {numbers.rank} on {address} could not connect to the other {numbers.size - 1} workers of generation "
            f"{membership.generation} within {limit.total_seconds():g} s ({cause}); check that the hosts reach each "
            "other on this address"
        )
        self.membership = membership
        self.address = address


class OperationFailedError(HorovodInternalError):
    """A collective was started and failed, most often because another worker has gone."""

    def __init__(self, operation: str, rank: int, cause: str) -> None:
        super().__init__(f"{operation} failed on rank {rank}: {cause}")
        self.operation = operation
        self.rank = rank


class ShutDownError(HorovodInternalError):
    """A collective was still pending when `shutdown()` ended its group."""

    def __init__(self, operation: str, rank: int) -> None:
        super().__init__(f"{operation} on rank {rank} was still pending when Horovod has been shut down")


class ExcessBackwardError(AssertionError):
    """More backward passes were made than the optimizer was told to expect; AssertionError as in Horovod."""

    def __init__(self, parameter: str, passes: int) -> None:
        super().__init__(
            f"Gradients were computed more than backward_passes_per_step times ({passes}) for {parameter} before "
            "step() or synchronize(); raise backward_passes_per_step to accumulate gradients locally"
        )


class NotServedError(NotImplementedError):
    """An argument of Horovod's that this version does not serve was given; ignoring it would be silently wrong."""

    def __init__(self, function: str, argument: str) -> None:
        super().__init__(f"{function}() does not support the argument '{argument}'; leave it out")
