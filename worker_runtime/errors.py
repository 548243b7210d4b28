"""What can go wrong inside a training process; each error builds its own sentence.

Long because all of them are found in one place.
"""

from collections.abc import Sequence
from datetime import timedelta

from worker_runtime.rendezvous import Assignment, Endpoint, Membership

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective did not complete. Programs written for Horovod catch it by this name."""


class NotInitializedError(HorovodInternalError, ValueError):
    """`rank()`, a collective, or the like was called before `init()` or after `shutdown()`.

    Cause: The script calls a function of Horovod before `hvd.init()`.
    Remedy: Call `hvd.init()` first.

    It is both errors because Horovod raises ValueError from `rank()` and HorovodInternalError from a collective.
    """

    def __init__(self) -> None:
        super().__init__(NOT_INITIALIZED)


class InitializationError(ValueError):
    """`init()` did not succeed; ValueError with this beginning is what programs written for Horovod match on."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"Horovod initialization failed: {cause}")
        self.cause = cause


class MemberElsewhereError(InitializationError):
    """A child of a worker called `init()`; it cannot take its parent's place.

    Cause: A child process runs the script again, as multiprocessing does with `spawn`.
    Remedy: Put the script's code under `if __name__ == "__main__":`.
    """

    def __init__(self, pid: int, rank: int) -> None:
        super().__init__(
            f"process {pid}, which has started this one, is rank {rank} of the job, and only it can be; call init() "
            'there alone: where children import the script, under if __name__ == "__main__"'
        )


class ForeignWorldError(InitializationError):
    """Another launcher started several workers and does not say how they can meet; training alone would be wrong.

    Cause: Another launcher has started the script, without the address where its workers meet.
    Remedy: Set `MASTER_ADDR` and `MASTER_PORT`, or start the script with hvdrun.
    """

    def __init__(self, launcher: str, size: int) -> None:
        super().__init__(
            f"{launcher} started this process as one of {size}, but does not say where they can meet; set MASTER_ADDR "
            f"(the host of rank 0) and MASTER_PORT (a free port there), or start the script with 'hvdrun -np {size}'"
        )


class ForeignRankError(InitializationError):
    """Another launcher's variables contradict each other.

    Cause: Variables of another launcher are left in the environment.
    Remedy: Unset them, or start the script with hvdrun.
    """

    def __init__(self, launcher: str, rank: int, size: int) -> None:
        super().__init__(
            f"the variables of {launcher} say that this process is rank {rank} of {size}, but the ranks are 0 to "
            f"{size - 1}; unset them to train alone, or start the script with 'hvdrun -np {size}'"
        )


class MeetingError(InitializationError):
    """The members of another launcher's world did not find each other.

    Cause: `MASTER_ADDR` or `MASTER_PORT` is wrong, or a firewall stands between the hosts.
    Remedy: Check both, or start the script with hvdrun, which finds the addresses.
    """

    def __init__(self, launcher: str, where: str, cause: str) -> None:
        super().__init__(f"the workers that {launcher} started could not meet at {where}: {cause}")


class MpiWorldError(InitializationError):
    """To MPI, which the program uses through mpi4py, the job is not the world.

    Cause: The script uses mpi4py, but MPI did not start it.
    Remedy: Start it with mpirun, or leave mpi4py out.
    """

    def __init__(self, numbers: Assignment, rank: int = 0, size: int = 1) -> None:
        super().__init__(
            f"to mpi4py this process is rank {rank} of {size}, and to the job rank {numbers.rank} of {numbers.size}; "
            f"start the script with 'mpirun -np {numbers.size}', or do not import mpi4py"
        )


class GroupFormationError(InitializationError):
    """The workers of a generation could not all connect to each other.

    Cause: A firewall between the hosts blocks free ports, or a worker ended meanwhile.
    Remedy: Let the firewalls pass TCP between the hosts, or name another network with `--network-interfaces`.
    """

    def __init__(self, membership: Membership, address: str, limit: timedelta, cause: str) -> None:
        numbers = membership.assignment
        super().__init__(
            f"rank {numbers.rank} on {address} could not connect to the other {numbers.size - 1} workers of generation "
            f"{membership.generation} within {limit.total_seconds():g} s ({cause}); check that the hosts reach each "
            "other on this address"
        )


class SequencerError(InitializationError):
    """The process that orders the collectives of a generation was not reached.

    Cause: The host of rank 0 cannot be reached from this one.
    Remedy: Let the firewalls pass TCP between the hosts.
    """

    def __init__(self, endpoint: Endpoint, cause: str) -> None:
        super().__init__(f"the sequencer at {endpoint} was not reached: {cause}; check that the hosts reach each other")


class DuplicateNameError(ValueError):
    """An operation of this name has been submitted here and is not done.

    Cause: The script submits two operations of one name at a time.
    Remedy: Wait for the first one, or give another name.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation}: a tensor with the same name is currently being processed; wait for it, or use another name"
        )


class ForkedError(HorovodInternalError):
    """A collective was called in a forked child of a worker, as a DataLoader's workers are.

    Cause: A forked child, such as a worker of a DataLoader, calls a collective.
    Remedy: Call collectives in the process that has called `hvd.init()`.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"this process was forked from rank {rank}, which alone is connected to the others: call collectives "
            "there; here only the numbers are known, as hvd.rank() and hvd.size()"
        )


class WrongArgumentError(ValueError, TypeError):
    """An argument is of a kind that cannot be meant; says which, and what to give.

    Cause: The argument has a type or a value that the function does not take.
    Remedy: Give what the sentence names.

    It is both errors because Horovod raises now the one, now the other.
    """


class UnsendableError(WrongArgumentError):
    """A collective cannot be put into a question to the other ranks; nothing was sent.

    Cause: The name or the shape is longer than a question to the other ranks may be.
    Remedy: Use a shorter name, or fewer tensors in one call.
    """

    def __init__(self, operation: str, cause: str) -> None:
        super().__init__(f"{operation} cannot be sent: {cause}")


class OperationRefusedError(HorovodInternalError):
    """A collective was not run: the ranks did not agree on it, or one that it needs has gone; the others go on.

    Cause: The ranks gave different shapes, types or arguments, or one of them has ended.
    Remedy: Make the same call on all ranks.
    """


class DeadlockError(OperationRefusedError):
    """Every rank waited for another, which none of them would ever ask: all that was pending was refused.

    Cause: The ranks wait for different operations, as with collectives under `if hvd.rank() == 0:`.
    Remedy: Make the same calls on all ranks, in any order.
    """


class StepRevokedError(HorovodInternalError):
    """A rank was lost before all had come to the end of the step, which is to be run again with what was kept.

    Cause: A rank was lost before all had completed the step.
    Remedy: None: `hvd.elastic.run` runs the step again.
    """

    def __init__(self) -> None:
        super().__init__("the job was formed anew before the step was committed")


class SetLostError(HorovodInternalError):
    """A process set has lost a member, and with it what it was for.

    Cause: A member of the process set was lost.
    Remedy: Make a new one with `hvd.add_process_set()` in the function under `hvd.elastic.run`.
    """

    def __init__(self, title: str, number: int, lost: Sequence[int]) -> None:
        ranks = ", ".join(map(str, lost))
        super().__init__(
            f"{title}: process set {number} has lost rank {ranks} (by the numbering before); make a new one with "
            "add_process_set()"
        )


class StuckError(HorovodInternalError):
    """What is under way cannot be stopped, so that the process cannot go on with others.

    Cause: An operation on the GPU did not end after a loss.
    Remedy: None: hvdrun starts another worker in its place.
    """

    def __init__(self) -> None:
        super().__init__(
            "this worker ends, to be replaced: what was under way on its GPU could not be stopped after a loss"
        )


class OperationFailedError(HorovodInternalError):
    """A collective was started and failed, most often because another worker has gone.

    Cause: Another worker has ended, or its connection broke.
    Remedy: See the first error in the output. With `hvd.elastic.run` training continues.
    """

    def __init__(self, operation: str, rank: int, cause: str) -> None:
        super().__init__(f"{operation} failed on rank {rank}: {cause}")


class IllegalTransitionError(RuntimeError):
    """A fault of the runtime: an operation became what it cannot become from where it was.

    Cause: hvdrun has a fault.
    Remedy: Report it, with the output of `-v`.
    """

    def __init__(self, operation: str, state: str, following: str) -> None:
        super().__init__(f"{operation} is {state} and cannot become {following}; please report this fault of hvdrun")


class UnsupportedReductionError(HorovodInternalError, ValueError):
    """A reducescatter was asked for another reduction than a sum or an average.

    Cause: `reducescatter` was called with another operation than `Sum` or `Average`.
    Remedy: Use one of these.

    It is both errors because Horovod raises HorovodInternalError, and it is a wrong argument.
    """

    def __init__(self, reduction: str) -> None:
        super().__init__(f"Reducescatter currently only supports AVERAGE and SUM. It was called with {reduction}.")


class ForgedObjectError(HorovodInternalError):
    """A Python object came in without the proof that a worker of this job has sent it; it was not unpickled.

    Cause: A process that is no worker of the job writes to its connections.
    Remedy: Find that process. Nothing of it was executed.
    """

    def __init__(self, title: str, rank: int) -> None:
        super().__init__(
            f"{title}: the object of rank {rank} does not carry this job's signature, and was not unpickled; "
            "something else than a worker of this job writes to its connections"
        )


class UnpicklableError(HorovodInternalError):
    """Another rank could not make bytes of the Python object that was to come from it.

    Cause: The object of another rank holds a lock, an open file or the like.
    Remedy: Broadcast only what can be pickled.
    """

    def __init__(self, title: str, rank: int, cause: str) -> None:
        super().__init__(f"{title}: rank {rank} could not pickle its object ({cause})")


class ShutDownError(HorovodInternalError):
    """A collective was still pending when `shutdown()` ended its group.

    Cause: `hvd.shutdown()` was called while an operation was pending.
    Remedy: Wait for all handles first.
    """

    def __init__(self, operation: str, rank: int) -> None:
        super().__init__(f"{operation} on rank {rank} was still pending when Horovod has been shut down")


class ExcessBackwardError(AssertionError):
    """More backward passes were made than the optimizer was told to expect; AssertionError as in Horovod.

    Cause: `backward()` ran more often between two steps than the optimizer expects.
    Remedy: Raise `backward_passes_per_step`, or call `step()` in between.
    """

    def __init__(self, parameter: str, passes: int) -> None:
        super().__init__(
            f"Gradients were computed more than backward_passes_per_step times ({passes}) for {parameter} before "
            "step() or synchronize(); raise backward_passes_per_step to accumulate gradients locally"
        )


class ChangedGradientError(RuntimeError):
    """A gradient was changed while it was averaged; no HorovodInternalError: a restart would not help.

    Cause: The script clips or scales gradients while they are averaged.
    Remedy: Call `optimizer.synchronize()` before, and `step()` under `optimizer.skip_synchronize()`.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the gradient of {parameter} was changed between backward() and step(), while it was being averaged; call "
            "optimizer.synchronize() before you change gradients, and then step() within optimizer.skip_synchronize(); "
            "to throw them away, call optimizer.zero_grad()"
        )


class SupersededError(RuntimeError):
    """An optimizer steps whose parameters a newer one averages; no HorovodInternalError: a restart would not help.

    Cause: Two DistributedOptimizers have the same parameters.
    Remedy: Step with the newer one.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"a newer DistributedOptimizer has {parameter}, and averages its gradients; step with that one, or wrap "
            "this optimizer anew, which takes its parameters back"
        )


class UnfinishedStepError(ValueError):
    """An optimizer is made while the gradients of its parameters are on their way for another one.

    Cause: An optimizer is made between `backward()` and `step()` of another one with the same parameters.
    Remedy: Make it after the step.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the gradient of {parameter} is being averaged for another DistributedOptimizer; make the new one between "
            "a step and the next backward pass, or clear the gradients before"
        )


class ReplicasDifferError(RuntimeError):
    """The ranks do not have the same parameters; no HorovodInternalError: it is the program that lets them part.

    Cause: The ranks began with different parameters, or change them outside of the optimizer.
    Remedy: Call `hvd.broadcast_parameters()` before training. Look for code that runs on some ranks only.

    Args:
        parameter: that differs.
        step: after which it was found to differ; 0 for before the first one.
        equal_step: after which all were found equal last.
    """

    def __init__(self, parameter: str, step: int, equal_step: int) -> None:
        if step:
            when = f"after step {step}" if step == equal_step + 1 else f"between step {equal_step} and step {step}"
            what = "look for what changes it on some ranks only, or with gradients that were not averaged"
        else:
            when, what = (
                "before the first step",
                "begin with hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
            )
        super().__init__(f"the replicas have parted: {parameter} is not the same on all ranks {when}; {what}")


class GradientShapeError(ValueError):
    """A gradient is not of its parameter's shape, because one of them was given other memory during a step.

    Cause: The script changes the shape of a parameter between `backward()` and `step()`.
    Remedy: Change it between steps, and clear the gradients.
    """

    def __init__(self, parameter: str, found: Sequence[int], expected: Sequence[int]) -> None:
        super().__init__(
            f"the gradient of {parameter} has the shape {list(found)}, and its parameter {list(expected)}; change the "
            "shape of parameters between step() and the next backward pass, and clear their gradients"
        )


class CheckpointError(RuntimeError):
    """A state was not saved to a folder, or not loaded from it; no HorovodInternalError: a restart does not help.

    Cause: The folder is full, cannot be written, or holds a checkpoint of another script.
    Remedy: See the reason in the sentence.
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - no error
    """No error, but the signal that hosts have come or gone: raised on all ranks alike, for `elastic.run` to catch.

    skip_sync: the state need not be synchronised afterwards, since nobody has come.
    """

    def __init__(self, skip_sync: bool = False) -> None:  # noqa: FBT001, FBT002 - Horovod's signature
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What `HorovodVersionMismatchError` says; some programs say it themselves.

    Args:
        name: of the framework.
        version: for which Horovod was built.
        installed_version: that there is now.
    """
    return (
        f"Horovod was built with {name} {version}, but {installed_version} is installed; install {version}, or "
        "build Horovod again"
    )


class HorovodVersionMismatchError(ImportError):
    """A framework is another version now than the one that Horovod was built for. Programs name it, nothing raises it.

    Nothing is built here, so that nothing can mismatch.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
