"""Parameters of which each rank has another part: a collective of hvd would mix the parts."""

from collections.abc import Iterable

import torch

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.snapshots.sharded import find_sharded

_PARTS = (
    "{}: torch.distributed divides or copies a {} among the ranks, and hvd would mix its parts: leave its averages and "
    "broadcasts to torch.distributed, or give the process set of the ranks that have the same part"
)

_KEPT = (
    "a state cannot keep a DTensor, which torch.distributed divides or copies among the ranks: write checkpoints with "
    "torch.distributed.checkpoint"
)


def refuse_part(tensor: torch.Tensor) -> None:
    """Refuse a DTensor that lies on several ranks: a checkpoint would have the part of rank 0 alone.

    Raises:
        WrongArgumentError: it is one.
    """
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None and mesh.size() > 1:
        raise WrongArgumentError(_KEPT)


def refuse_parts(title: str, tensors: Iterable[torch.Tensor], process_set: ProcessSet) -> None:
    """Refuse parameters of FSDP, and DTensors. In a process set of the program's own, ranks may have the same parts.

    Raises:
        WrongArgumentError: there is such a tensor.
    """
    if process_set is not global_process_set or RUNTIME.engine.size == 1:
        return
    if kind := next((kind for each in tensors if (kind := find_sharded(each)) is not None), None):
        raise WrongArgumentError(_PARTS.format(title, kind))
