"""`import horovod.torch as hvd`: all of `worker_runtime.torch`, and Horovod's modules below it."""

from horovod._offering import offer, offer_rest
from horovod.torch import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm

_RUNTIME = "worker_runtime.torch"
_TABLE = {
    _RUNTIME: (
        *mpi_ops.OPERATIONS,
        *("Compression", "DistributedOptimizer", "HorovodInternalError", "SyncBatchNorm", "_check_has_gpu"),
        *("allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"),
    ),
}
__all__ = ["compression", "elastic", "functions", "mpi_ops", "optimizer", "sync_batch_norm"]
offer(globals(), _TABLE)
offer_rest(globals(), _RUNTIME)  # what Horovod does not have
