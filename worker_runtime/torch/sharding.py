"""Parameters of which each rank has another part: a collective of hvd would mix the parts."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.snapshots.sharded import find_sharded

_PARTS = (
    "{}: torch.distributed divides or copies a {} among the ranks, and hvd would mix its parts: leave its averages and "
    "broadcasts to torch.distributed, or give the process set of the ranks that have the same part"
)

_KEPT = (
    "a state cannot keep a {}, which torch.distributed divides or copies among the ranks: write checkpoints with "
    "torch.distributed.checkpoint"
)


def refuse_part(tensor: torch.Tensor) -> None:
    """Refuse a tensor that lies on several ranks: a checkpoint would have the part of rank 0 alone.

    Raises:
        WrongArgumentError: it is one.
    """
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is not None and mesh.size() > 1:
        raise WrongArgumentError(_KEPT.format("DTensor"))


def refuse_parts_of_optimizer(optimizer: Any) -> None:
    """As `refuse_part`, for the parameters of an optimizer: its state has parts as they have.

    Raises:
        WrongArgumentError: there is such a parameter.
    """
    is_alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        refuse_part(parameter)
        if not is_alone and find_sharded(parameter) == "FlatParameter":  # of FSDP
            raise WrongArgumentError(_KEPT.format("FlatParameter"))


def refuse_parts(title: str, tensors: Iterable[torch.Tensor], process_set: ProcessSet) -> None:
    """Refuse parameters of FSDP, and DTensors. In a process set of the program's own, ranks may have the same parts.

    Raises:
        WrongArgumentError: there is such a tensor.
    """
    if process_set is not global_process_set or RUNTIME.engine.size == 1:
        return
    if kind := next((kind for each in tensors if (kind := find_sharded(each)) is not None), None):
        raise WrongArgumentError(_PARTS.format(title, kind))
