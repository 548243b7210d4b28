"""`hvd.stopping()`: whether the job is to save what it needs and end, the same on all ranks."""

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.process_set import global_process_set
from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.collectives.untraced import untraced
from worker_runtime.membership.runtime import RUNTIME


@untraced
def stopping() -> bool:
    """Whether a stop notice has come for the job: save, and end with `sys.exit(75)`.

    All ranks must ask at the same places of their programs, and get the same answer. After a step of a
    `DistributedOptimizer` of all ranks the answer is that of the last step, and costs nothing. In a program that has
    none the ranks ask each other. Once it is true it stays true, until an elastic function begins again.

    Returns:
        True where `SIGUSR2` has come to hvdrun, or, in a job that cannot go on without a host, to one of its agents or
        workers. Without hvdrun, False.

    Raises:
        HorovodInternalError: a rank has gone, or Horovod has not been initialized.
    """
    executor = RUNTIME.executor
    if not executor.is_stopping:
        if executor.size == 1:
            executor.is_stopping = RUNTIME.stop_notice.has_come()
        elif not executor.has_stepped:
            executor.is_stopping = _ask_all()
    return executor.is_stopping


def _ask_all() -> bool:
    call = begin_call("stopping", None, global_process_set)
    known = torch.tensor([call.executor.knows_of_notice()], dtype=torch.int32, device="cpu")
    return bool(call.executor.run(Allreduce([known], Combination(Reduction.MAX), call.among, call.name))[0].item())
