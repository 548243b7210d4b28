"""What an MXNet script imports: `import worker_runtime.mxnet as hvd`, or `import horovod.mxnet as hvd`."""

from importlib import import_module
from typing import TYPE_CHECKING

from worker_runtime.mxnet import mxnet_errors  # noqa: F401 - first: it reports what is missing

# isort: split
from worker_runtime.api import basics, names
from worker_runtime.api.basics import *  # noqa: F403 - Horovod's functions; `basics` has the list
from worker_runtime.api.names import *  # noqa: F403 - what is the same in both frameworks; `names` has the list
from worker_runtime.mxnet import elastic, ops
from worker_runtime.mxnet.compression import Compression
from worker_runtime.mxnet.functions import broadcast_optimizer_state, broadcast_parameters
from worker_runtime.mxnet.ops import *  # noqa: F403 - Horovod's functions; `ops` has the list
from worker_runtime.mxnet.optimizer import DistributedOptimizer
from worker_runtime.mxnet.trainer import DistributedTrainer

if TYPE_CHECKING:
    from worker_runtime.mxnet.loaders import split_data
    from worker_runtime.mxnet.preparation import pin_device, prepare, scale_learning_rate
else:

    def __getattr__(name: str) -> object:
        """Import what most programs do not use when it is asked for."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)


_LATE = {
    "pin_device": "worker_runtime.mxnet.preparation",
    "prepare": "worker_runtime.mxnet.preparation",
    "scale_learning_rate": "worker_runtime.mxnet.preparation",
    "split_data": "worker_runtime.mxnet.loaders",
}

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "pin_device",
    "prepare",
    "scale_learning_rate",
    "split_data",
]
__all__ += basics.__all__
__all__ += names.__all__
__all__ += ops.__all__
