"""`import horovod.mxnet as hvd`: all of `worker_runtime.mxnet`, and Horovod's modules below it."""

from horovod._offering import offer, offer_rest
from horovod.mxnet import compression, functions, mpi_ops

_RUNTIME = "worker_runtime.mxnet"
_TABLE = {
    _RUNTIME: (
        *mpi_ops.OPERATIONS,
        *("Compression", "DistributedOptimizer", "DistributedTrainer"),
        *("allgather_object", "broadcast_object", "broadcast_parameters"),
    ),
}
__all__ = ["compression", "functions", "mpi_ops"]
offer(globals(), _TABLE)
offer_rest(globals(), _RUNTIME)  # what Horovod does not have
