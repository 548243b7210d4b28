"""`import horovod.mxnet as hvd`: all of `worker_runtime.mxnet`, and Horovod's modules below it."""

from importlib import import_module

from horovod._offering import offer
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
# What Horovod does not have.
offer(globals(), {_RUNTIME: [name for name in import_module(_RUNTIME).__all__ if name not in globals()]})
