"""Operations that move no tensors: barrier and join."""

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives import Barrier, Join
from worker_runtime.collectives.untraced import untraced


@untraced
@gives_up("barrier")
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a set have called it. Other operations may be pending, and need not be done then.

    Args:
        process_set: the ranks that wait for each other.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
        HorovodInternalError: a rank of the set has joined or gone, or Horovod has not been initialized.
    """
    call = begin_call("barrier", None, process_set)
    call.executor.run(Barrier(call.among, call.name))


@untraced
def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks of the job have said so.

    Meanwhile the others' allreduces go on as if this rank contributed what changes nothing: zeros to a sum, ones to a
    product, and to a minimum or maximum nothing. (Horovod contributes zeros to all.) An average divides by the full
    size all the same. Allgather, broadcast, alltoall, reducescatter and barrier are an error while a rank has joined.

    Args:
        device: where what this rank contributes lies while the others use CUDA: a device's number, or -1 for the
            current one.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a rank has gone, or Horovod has not been initialized.
    """
    call = begin_call("join", "all")
    place = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        place = torch.device("cuda", torch.cuda.current_device() if device < 0 else device)
    return call.executor.run(Join(call.among, device=place))
