"""The errors of a training process. Each class composes its own message."""

import sys
from collections.abc import Sequence
from datetime import timedelta

from worker_runtime.rendezvous import Assignment, Endpoint, Membership

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class HorovodInternalError(RuntimeError):
    """A collective failed. Programs written for Horovod catch this error."""


class NotInitializedError(HorovodInternalError, ValueError):
    """A function that needs `init()` was called before it, or after `shutdown()`.

    Message: Horovod has not been initialized; use hvd.init().
    Cause: The script calls a function of Horovod before `hvd.init()`, or after `hvd.shutdown()`.
    Remedy: Call `hvd.init()` first.

    It has two base classes because Horovod raises ValueError from `rank()` and HorovodInternalError from a collective.
    """

    def __init__(self) -> None:
        super().__init__(NOT_INITIALIZED)


class InitializationError(ValueError):
    """`init()` failed. Programs written for Horovod match the first words of the message."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"Horovod initialization failed: {cause}")
        self.cause = cause


class TooFewThreadsError(InitializationError):
    """A limit of this host leaves a worker too few threads.

    Cause: `ulimit -u` or pids.max of the control group is low, or other processes use it up.
    Remedy: Raise the limit, use fewer workers, or end the other processes.
    """

    def __init__(self, startable: int, needed: int) -> None:
        super().__init__(
            f"this worker needs {needed} threads, but can start only {startable}; raise `ulimit -u` or pids.max of the "
            "control group, or use fewer workers"
        )


class WorkerVersionError(InitializationError):
    """A worker imports another version of hvdrun than its job runs with.

    Cause: hvdrun was installed anew while the job ran, or the Python of the workers has another version.
    Remedy: Install the version of the job again, or end the job and start it again, from its checkpoint if it has one.
    """

    def __init__(self, own: str, version: str) -> None:
        super().__init__(
            f"this worker imports hvdrun {own}, and its job runs with hvdrun {version}: install that again for "
            f"{sys.executable}, or start the job again"
        )


class MemberElsewhereError(InitializationError):
    """A child process of a worker called `init()`.

    Cause: A child process runs the script again, as multiprocessing does with `spawn`.
    Remedy: Put the script's code under `if __name__ == "__main__":`.

    Cause: The script starts another script that calls `init()`.
    Remedy: Start it as a job of its own: `hvdrun -np 1 python SCRIPT`.
    """

    def __init__(self, pid: int, rank: int) -> None:
        super().__init__(
            f"its parent process {pid} is already rank {rank} of the job; call init() only there: where child "
            'processes import the script, call it under if __name__ == "__main__"; start another script with '
            "'hvdrun -np 1 python SCRIPT'"
        )


class ForeignWorldError(InitializationError):
    """Another launcher started several workers without an address where they can meet.

    Cause: Another launcher started the script, and did not set the address where its workers meet.
    Remedy: Set `MASTER_ADDR` and `MASTER_PORT`, or start the script with hvdrun.
    """

    def __init__(self, launcher: str, size: int) -> None:
        super().__init__(
            f"{launcher} started this process as one of {size}, but set no address where they can meet; set "
            f"MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there), or start the script with "
            f"'hvdrun -np {size}'"
        )


class ForeignRankError(InitializationError):
    """Another launcher's variables contradict each other.

    Cause: Variables of another launcher are left in the environment.
    Remedy: Unset them, or start the script with hvdrun.
    """

    def __init__(self, launcher: str, rank: int, size: int) -> None:
        super().__init__(
            f"by the variables of {launcher} this process is rank {rank} of {size}, but the ranks are 0 to {size - 1}; "
            f"unset these variables, or start the script with 'hvdrun -np {size}'"
        )


class MeetingError(InitializationError):
    """The workers that another launcher started could not connect to each other.

    Cause: `MASTER_ADDR` or `MASTER_PORT` is wrong, or a firewall blocks the port.
    Remedy: Check both, or start the script with hvdrun, which finds the addresses.
    """

    def __init__(self, launcher: str, where: str, cause: str) -> None:
        super().__init__(f"the workers that {launcher} started could not meet at {where}: {cause}")


class MpiWorldError(InitializationError):
    """The world of mpi4py, which the program uses, is not the job.

    Cause: The script uses mpi4py, but MPI did not start it.
    Remedy: Start it with mpirun, or do not import mpi4py.
    """

    def __init__(self, numbers: Assignment, rank: int = 0, size: int = 1) -> None:
        super().__init__(
            f"this process is rank {rank} of {size} in mpi4py, and rank {numbers.rank} of {numbers.size} in the job; "
            f"start the script with 'mpirun -np {numbers.size}', or do not import mpi4py"
        )


class GroupFormationError(InitializationError):
    """The workers of a generation could not all connect to each other.

    Cause: A firewall between the hosts blocks free ports, or a worker exited meanwhile.
    Remedy: Allow TCP between the hosts in the firewalls, or choose another network with `--network-interfaces`.
    """

    def __init__(self, membership: Membership, address: str, limit: timedelta, cause: str) -> None:
        numbers = membership.assignment
        super().__init__(
            f"rank {numbers.rank} on {address} could not connect to the other {numbers.size - 1} workers of generation "
            f"{membership.generation} within {limit.total_seconds():g} s ({cause}); check that the hosts reach each "
            "other on this address"
        )


class SequencerError(InitializationError):
    """The sequencer, which orders the collectives of a generation, is unreachable.

    Message: cannot reach the sequencer at ENDPOINT: CAUSE; check that the hosts reach each other
    Cause: This host cannot reach the host of rank 0.
    Remedy: Allow TCP between the hosts in the firewalls.

    Message: cannot reach the sequencer at ENDPOINT: CAUSE; the sequencer, a process beside rank 0, has ended: see
        whether somebody killed it, or memory ran out
    Cause: The process was killed.
    Remedy: Look for `Out of memory` in `dmesg` on the host of rank 0.

    Args:
        endpoint: the sequencer's address and port.
        cause: why it is unreachable.
        has_ended: its host answers, and says that nobody listens there.
    """

    def __init__(self, endpoint: Endpoint, cause: str, *, has_ended: bool = False) -> None:
        check = (
            "the sequencer, a process beside rank 0, has ended: see whether somebody killed it, or memory ran out"
            if has_ended
            else "check that the hosts reach each other"
        )
        super().__init__(f"cannot reach the sequencer at {endpoint}: {cause}; {check}")


class DuplicateNameError(ValueError):
    """An operation of this name is in flight on this rank.

    Cause: The script submits two operations of one name at the same time.
    Remedy: Wait for the first one, or use another name.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation}: a tensor with the same name is currently being processed; wait for it, or use another name"
        )


class ForkedError(HorovodInternalError):
    """A collective was called in a forked child of a worker, such as a DataLoader's worker.

    Cause: A forked child, such as a worker of a DataLoader, calls a collective.
    Remedy: Call collectives in the process that called `hvd.init()`.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"this process was forked from rank {rank}, and is not connected to the other ranks: call collectives in "
            f"its parent; here you can call hvd.rank(), hvd.size() and the like"
        )


class WrongArgumentError(ValueError, TypeError):
    """An argument has a wrong type or value. The message names the argument and what to give.

    Message: OPERATION: a tensor was expected, not TYPE; use torch.as_tensor(x)
    Cause: The argument is a list, a number or an array.
    Remedy: Give a tensor.

    Cause: The argument has a type or a value that the function does not accept.
    Remedy: Give what the message names.

    It has two base classes because Horovod raises either, depending on the function.
    """


class ShapelessParameterError(WrongArgumentError):
    """A parameter of a lazy module, such as LazyLinear, has no shape before the module's first forward pass.

    Cause: The model has a lazy module, and has not seen a batch yet.
    Remedy: Call the model once with a batch, on all ranks, before the function that raises this.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the parameter '{parameter}' has no shape yet, since it belongs to a lazy module; first call the model "
            "once with a batch, on all ranks"
        )


class UnsendableError(WrongArgumentError):
    """A collective cannot be encoded for the other ranks. Nothing was sent.

    Cause: The name or the shapes are too long for a message to the other ranks.
    Remedy: Use a shorter name, or fewer tensors in one call.
    """

    def __init__(self, operation: str, cause: str) -> None:
        super().__init__(f"{operation} cannot be sent: {cause}")


class OperationRefusedError(HorovodInternalError):
    """A collective was not run, because the ranks' arguments differ or a rank is missing. Other collectives continue.

    Message: Mismatched ALLREDUCE tensor shapes: OPERATION has SHAPE on rank RANK and SHAPE on rank RANK.
    Message: Mismatched data types: OPERATION has DTYPE on rank RANK and DTYPE on rank RANK.
    Message: Mismatched reduction operations: OPERATION has OP on rank RANK and OP on rank RANK.
    Cause: The ranks give different shapes, dtypes or arguments.
    Remedy: Make the same call on all ranks.

    Message: OPERATION failed on rank RANK before anything was sent: ERROR
    Cause: The call of that rank has a wrong argument.
    Remedy: See the error of that rank.

    Message: rank RANK ended, and OPERATION needs it.
    Message: Horovod has been shut down on rank RANK, and OPERATION needs it.
    Cause: A rank has ended, or has called `hvd.shutdown()`, and others wait for it.
    Remedy: Make the same calls on all ranks. Where the ranks have different numbers of batches, call `hvd.join()`.

    Message: BROADCAST is not supported with Join at this time: OPERATION needs all members of its process set, and
        rank RANK has joined.
    Cause: A rank calls another collective than `allreduce` while other ranks wait in `hvd.join()`.
    Remedy: Call it before `hvd.join()`, or after all ranks have joined.
    """


class DeadlockError(OperationRefusedError):
    """Every rank waited for an operation that another rank will not call. All pending operations failed.

    Message: Mismatched operations: every rank waits for another: rank RANK waits for OPERATION; rank RANK waits for
        OPERATION.
    Cause: The ranks wait for different operations: they call collectives in different orders, or under
        `if hvd.rank() == 0:`.
    Remedy: Make the same calls in the same order on all ranks. Only `_async` calls with names may come in any order.
    """


class StepRevokedError(HorovodInternalError):
    """A rank was lost before all ranks had completed the step. The step runs again with the kept gradients.

    Cause: A rank was lost before all ranks had completed the step.
    Remedy: None: `hvd.elastic.run` runs the step again.
    """

    def __init__(self) -> None:
        super().__init__("a new generation was formed before all ranks had completed the step")


class SetLostError(HorovodInternalError):
    """A process set has lost a member, and can no longer communicate.

    Cause: A member of the process set was lost.
    Remedy: Create a new set with `hvd.add_process_set()` in the function under `hvd.elastic.run`.
    """

    def __init__(self, title: str, number: int, lost: Sequence[int]) -> None:
        ranks = ", ".join(map(str, lost))
        super().__init__(
            f"{title}: process set {number} has lost rank {ranks} (its rank before the loss); create a new set with "
            "add_process_set()"
        )


class StuckError(HorovodInternalError):
    """A running operation cannot be aborted, so the process cannot join another generation.

    Cause: An operation on the GPU did not stop after a loss.
    Remedy: None: hvdrun starts another worker in its place.
    """

    def __init__(self) -> None:
        super().__init__("this worker exits, to be replaced: an operation on its GPU could not be aborted after a loss")


class OperationFailedError(HorovodInternalError):
    """A collective failed while it ran, usually because another worker was lost.

    Cause: Another worker has exited, or its connection broke.
    Remedy: See the first error in the output. With `hvd.elastic.run` training continues.
    """

    def __init__(self, operation: str, rank: int, cause: str) -> None:
        super().__init__(f"{operation} failed on rank {rank}: {cause}")
        self.rank = rank


class IllegalTransitionError(RuntimeError):
    """An operation made an illegal transition between its states; a bug in hvdrun.

    Cause: hvdrun has a bug.
    Remedy: Report it, with the output of `-v`.
    """

    def __init__(self, operation: str, state: str, following: str) -> None:
        super().__init__(f"{operation} is {state} and cannot become {following}; please report this bug of hvdrun")


class UnsupportedReductionError(HorovodInternalError, ValueError):
    """`reducescatter` was called with an op other than Sum or Average.

    Cause: `reducescatter` was called with an op other than `Sum` or `Average`.
    Remedy: Use one of these.

    It has two base classes: Horovod raises HorovodInternalError, and a wrong argument is a ValueError.
    """

    def __init__(self, reduction: str) -> None:
        super().__init__(f"Reducescatter currently only supports AVERAGE and SUM. It was called with {reduction}.")


class ForgedObjectError(HorovodInternalError):
    """A received Python object lacks the job's signature. It was not unpickled.

    Cause: A process that is not a worker of the job writes to its connections.
    Remedy: Find that process. Its data was not executed.
    """

    def __init__(self, title: str, rank: int) -> None:
        super().__init__(
            f"{title}: the object of rank {rank} lacks this job's signature, and was not unpickled; a process that is "
            "not a worker of this job writes to its connections"
        )


class UnpicklableError(HorovodInternalError):
    """Another rank could not pickle the Python object that it had to send.

    Cause: The object of another rank contains a lock, an open file or the like.
    Remedy: Send only objects that can be pickled.
    """

    def __init__(self, title: str, rank: int, cause: str) -> None:
        super().__init__(f"{title}: rank {rank} could not pickle its object ({cause})")


class ShutDownError(HorovodInternalError):
    """`shutdown()` interrupted a pending collective.

    Cause: `hvd.shutdown()` was called while an operation was pending.
    Remedy: Wait for all handles first.
    """

    def __init__(self, operation: str, rank: int) -> None:
        super().__init__(f"{operation} on rank {rank} was still pending when Horovod has been shut down")


class ExcessBackwardError(AssertionError):
    """More backward passes ran than the optimizer expects. It is an AssertionError as in Horovod.

    Cause: `backward()` ran more often between two steps than the optimizer expects.
    Remedy: Raise `backward_passes_per_step`, or call `step()` in between.
    """

    def __init__(self, parameter: str, passes: int) -> None:
        super().__init__(
            f"Gradients were computed more than backward_passes_per_step times ({passes}) for {parameter} before "
            "step() or synchronize(); raise backward_passes_per_step to accumulate gradients locally"
        )


class LocalStepError(AssertionError):
    """An optimizer steps with gradients that are not averaged. It is an AssertionError as in Horovod.

    Cause: The script steps by the optimizer that it has given to `DistributedOptimizer`, by the trainer of Gluon that
        it has given to `hvd.prepare()`, or by another method than `step()`, such as `first_step()` of SAM.
    Remedy: Use what `DistributedOptimizer` or `hvd.prepare()` returns. Before another method call `synchronize()`.
    """

    def __init__(self, method: str, remedy: str) -> None:
        super().__init__(f"optimizer.{method}() steps with this rank's own gradients, not with the average; {remedy}")


class ChangedGradientError(RuntimeError):
    """A gradient was changed while it was averaged. Not a HorovodInternalError, since a restart does not help.

    Cause: The script clips or scales gradients while they are averaged.
    Remedy: Call `optimizer.synchronize()` before, and `step()` under `optimizer.skip_synchronize()`.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the gradient of {parameter} was changed between backward() and step(), while it was being averaged; call "
            "optimizer.synchronize() before you change gradients, and then step() within optimizer.skip_synchronize(); "
            "to discard them, call optimizer.zero_grad()"
        )


class SupersededError(RuntimeError):
    """A newer optimizer has taken over a parameter. Not a HorovodInternalError, since a restart does not help.

    Cause: Two DistributedOptimizers have the same parameters.
    Remedy: Step with the newer one.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"a newer DistributedOptimizer averages the gradients of {parameter}; step with that one, or wrap this "
            "optimizer again, which takes its parameters back"
        )


class UnfinishedStepError(ValueError):
    """A DistributedOptimizer is created while another one averages the gradients of its parameters.

    Cause: An optimizer is created between `backward()` and `step()` of another one with the same parameters.
    Remedy: Create it after the step.
    """

    def __init__(self, parameter: str) -> None:
        super().__init__(
            f"the gradient of {parameter} is being averaged for another DistributedOptimizer; create the new one "
            "between a step and the next backward pass, or clear the gradients before"
        )


class NotFiniteError(RuntimeError):
    """A rank's own gradient is not finite. Not a HorovodInternalError, since a restart does not help.

    Message: rank RANK's gradient of PARAMETER is not finite (KIND) in step STEP
    Cause: The training diverges, a batch of that rank has a wrong value, or the memory of its host is faulty. Then the
        step of the optimizer did not run on any rank (`--nan-is-error`).
    Remedy: See [The loss is NaN](nan.md).
    """


class ReplicasDifferError(RuntimeError):
    """The ranks have different parameters. Not a HorovodInternalError, since a restart does not help.

    Message: the replicas differ: PARAMETER is not the same on all ranks before the first step; WHAT
    Message: the replicas differ: PARAMETER is not the same on all ranks between step STEP and step STEP; WHAT
    Cause: The ranks started with different parameters, change them outside of the optimizer, or have different learning
        rates, because the state of an elastic job lacks the scheduler. Or the memory or processor of a host is faulty.
    Remedy: Call `hvd.broadcast_parameters()` before training. Look for code that runs on some ranks only. Give the
        scheduler to `TorchState`. Test the host of a rank that differs again and again.

    Args:
        parameter: the name of a parameter that differs, or of what belongs to it.
        step: the step after which the check found the difference; 0 for before the first step.
        equal_step: the last step after which all parameters were equal.
        odd_ranks: the ranks that differ from most others; empty where that cannot be said.
        size: how many ranks were compared.
    """

    def __init__(
        self, parameter: str, step: int, equal_step: int, odd_ranks: Sequence[int] = (), size: int = 0
    ) -> None:
        if step:
            when = f"after step {step}" if step == equal_step + 1 else f"between step {equal_step} and step {step}"
            what = "look for code that changes it on some ranks only, or with gradients that were not averaged"
        else:
            when, what = (
                "before the first step",
                "call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before training",
            )
        if odd_ranks:
            ranks = ", ".join(map(str, odd_ranks))
            when += f" (it is another one on rank {ranks} than on the {size - len(odd_ranks)} others)"
        self.odd_ranks = tuple(odd_ranks)
        super().__init__(f"the replicas differ: {parameter} is not the same on all ranks {when}; {what}")


class GradientShapeError(ValueError):
    """A gradient has another shape than its parameter, because the script replaced one of them during a step.

    Cause: The script changes the shape of a parameter between `backward()` and `step()`.
    Remedy: Change it between steps, and clear the gradients.
    """

    def __init__(self, parameter: str, found: Sequence[int], expected: Sequence[int]) -> None:
        super().__init__(
            f"the gradient of {parameter} has the shape {list(found)}, and its parameter {list(expected)}; change the "
            "shape of parameters between step() and the next backward pass, and clear their gradients"
        )


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or loaded. Not a HorovodInternalError, since a restart does not help.

    Message: no checkpoint can be written to FOLDER: REASON
    Cause: The folder is full, or rank 0 may not write to it.
    Remedy: Free space there, or give another folder.

    Message: the checkpoint FILE does not fit this program: ERROR
    Cause: Another script wrote the checkpoint.
    Remedy: Continue with that script, or start again with another folder.

    Message: the checkpoint FILE is damaged (its checksum does not match); there is no other checkpoint
    Cause: All checkpoints in the folder are damaged.
    Remedy: Remove them, or give another folder.

    Message: rank RANK sees a newer checkpoint in FOLDER than rank 0 does
    Cause: The hosts do not share the folder, or another job has written to it.
    Remedy: Give a folder that all hosts share.
    """


class SnapshotError(RuntimeError):
    """A Snapshot cannot keep or load the state of this program.

    Message: NAME cannot be in a Snapshot: CLASS lies on several ranks, and a rank may lack parts; write checkpoints
        instead
    Cause: FSDP, tensor parallelism, ZeRO or DeepSpeed divide the state among the ranks.
    Remedy: Give an object that [gathers it](../tutorials/ddp.md#shards), or write checkpoints with
        torch.distributed.checkpoint.

    Message: NAME is a CONTAINER with an object of the class CLASS, which has a state_dict: give each such object a name
        of its own
    Cause: A list of modules or schedulers, say, would be replaced by `restore()`, and the script's own would stay as
        they are.
    Remedy: Give each object a name: `Snapshot(first=a, second=b)`.

    Message: NAME is or has a tensor that requires gradients, and restore() would make another one: give its module
    Cause: The optimizer would train the script's tensor, which stays as it was.
    Remedy: Put such tensors into a module, as `torch.nn.ParameterList`, and give that.

    Message: two copies of the state need SIZE on each host, and the memory of this host leaves SIZE
    Message: two copies of the state need SIZE on each host, and memory.max of the control group leaves SIZE
    Cause: The host, or the container, has too little memory for two more copies of model and optimizer.
    Remedy: Use a host with more memory, or write checkpoints.

    Message: restore() needs the ranks' process group: call torch.distributed.init_process_group() before
    Cause: The script calls `restore()` too early, or uses `hvd.init()` alone.
    Remedy: Call it after `init_process_group()`. With `hvd.init()`, use `hvd.elastic`.

    Message: the snapshot has NAMES, and this program keeps NAMES: start a new job
    Message: NAME cannot load its snapshot (ERROR); start a new job
    Cause: The script was changed while its job ran.
    Remedy: End the job, and start it again.

    Message: save() comes before restore(), and would replace what is there: call restore() in each round, before save()
    Cause: A script that does not call `restore()` begins anew in each round.
    Remedy: Call it on all ranks, in the first round too, where it gives False.

    Message: NAME is an object with a state_dict before restore() or after it, not both: assign the object before
        restore()
    Cause: A scheduler, say, takes the place of None while the script trains. The next round begins with None again, and
        would get the scheduler's state_dict in its place.
    Remedy: Make the object before `restore()`, and use it when it is time.

    Message: this worker has another Snapshot: give all objects and values to one
    Message: another Snapshot of this worker has saved in this round: give all objects and values to one
    Cause: The script, or a program before it in the same worker, has trained with another Snapshot.
    Remedy: Use one Snapshot for all, or start a job for each training.
    """


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name; it is no error
    """A signal to `elastic.run`, not an error: hosts were added or removed. All ranks raise it.

    Args:
        skip_sync: the state need not be synchronized afterwards, since no worker was added.
    """

    def __init__(self, skip_sync: bool = False) -> None:  # noqa: FBT001, FBT002 - Horovod's signature
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The message of `HorovodVersionMismatchError`, for programs written for Horovod.

    Args:
        name: the name of the framework.
        version: the version for which Horovod was built.
        installed_version: the installed version.
    """
    return (
        f"Horovod was built with {name} {version}, but {installed_version} is installed; install {version}, or "
        "build Horovod again"
    )


class HorovodVersionMismatchError(ImportError):
    """The installed framework is not the version for which Horovod was built.

    hvdrun never raises it, since it is not built for a version. Programs written for Horovod refer to it.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
