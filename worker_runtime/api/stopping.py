"""`hvd.stopping()`: whether the job is to save what it needs and end, the same on all ranks."""

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
    return RUNTIME.is_stopping()
