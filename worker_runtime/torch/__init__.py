"""What a PyTorch script imports: `import worker_runtime.torch as hvd`, or `import horovod.torch as hvd`."""

from importlib import import_module
from typing import TYPE_CHECKING

import torch

from worker_runtime.api import basics, names
from worker_runtime.api.basics import *  # noqa: F403 - Horovod's functions; `basics` has the list
from worker_runtime.api.names import *  # noqa: F403 - what is the same in both frameworks; `names` has the list
from worker_runtime.torch import elastic, ops
from worker_runtime.torch.compression import Compression
from worker_runtime.torch.functions import broadcast_optimizer_state, broadcast_parameters
from worker_runtime.torch.ops import *  # noqa: F403 - Horovod's functions; `ops` has the list
from worker_runtime.torch.optimizer import DistributedOptimizer
from worker_runtime.torch.sync_batch_norm import SyncBatchNorm

if TYPE_CHECKING:
    from worker_runtime.errors import SnapshotError
    from worker_runtime.torch.loaders import split_data
    from worker_runtime.torch.preparation import describe_device, pin_device, prepare, scale_learning_rate
    from worker_runtime.torch.snapshot import Snapshot
else:

    def __getattr__(name: str) -> object:
        """Import what most programs do not use when it is asked for."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_LATE[name]), name)


_LATE = {
    "Snapshot": "worker_runtime.torch.snapshot",
    "SnapshotError": "worker_runtime.errors",
    "describe_device": "worker_runtime.torch.preparation",
    "pin_device": "worker_runtime.torch.preparation",
    "prepare": "worker_runtime.torch.preparation",
    "scale_learning_rate": "worker_runtime.torch.preparation",
    "split_data": "worker_runtime.torch.loaders",
}

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "Snapshot",
    "SnapshotError",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "describe_device",
    "elastic",
    "pin_device",
    "prepare",
    "scale_learning_rate",
    "split_data",
]
__all__ += basics.__all__
__all__ += names.__all__
__all__ += ops.__all__


def _check_has_gpu() -> bool:
    """Whether there is a CUDA device; under Horovod's name, by which scripts ask for it."""
    return torch.cuda.is_available()
