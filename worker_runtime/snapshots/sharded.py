"""Objects that lie on several ranks, so that no rank can save all of them. They are recognized by the names of classes.

Nothing more is imported for that: a program that has such an object has imported its class.
"""

from collections.abc import Iterable
from typing import Any

import torch

# A class's name, and the package in which it is.
_SHARDED = {
    "DTensor": "torch.distributed",
    "ShardedTensor": "torch.distributed",
    "FlatParameter": "torch.distributed",
    "FullyShardedDataParallel": "torch.distributed",
    "FSDPModule": "torch.distributed",
    "ZeroRedundancyOptimizer": "torch.distributed",
    "PostLocalSGDOptimizer": "torch.distributed",  # between two averages each rank has another model
    "DeepSpeedEngine": "deepspeed",
    "DeepSpeedOptimizer": "deepspeed",
    "DeepSpeedZeroOptimizer": "deepspeed",
}

# Each rank counts its own samples in these. Within a model they are left alone: the training does not depend on them.
_METRICS = frozenset({"Metric", "MetricCollection"}), ("torchmetrics", "torcheval")


def find_sharded(value: Any) -> str | None:
    """The name of the class by which this object lies on several ranks; None if it does not."""
    for kind in type(value).__mro__:
        package = _SHARDED.get(kind.__name__)
        if package is not None and kind.__module__.startswith(package):
            return kind.__name__
    # FSDP marks its flat parameters by an attribute, and those of a module that it has flattened by another one.
    marks = ("_is_flat_param", "_fsdp_flattened")
    is_flat = isinstance(value, torch.Tensor) and any(getattr(value, name, False) is True for name in marks)
    return "FlatParameter" if is_flat else None


def find_any_sharded(value: Any) -> str | None:
    """The first result of `find_sharded` for a module or optimizer and its parts; None if there is none."""
    names, packages = _METRICS
    if any(kind.__name__ in names and kind.__module__.startswith(packages) for kind in type(value).__mro__):
        return type(value).__name__
    parts: list[Iterable[Any]] = [[value]]
    if isinstance(value, torch.nn.Module):
        parts += [value.modules(), value.parameters(), value.buffers()]
    parts += [group["params"] for group in _list_groups(value)]
    return next((kind for part in parts for each in part if (kind := find_sharded(each)) is not None), None)


def _list_groups(value: Any) -> list[Any]:
    """The groups of an optimizer. Another object may have attributes of all names, or raise any error."""
    try:
        groups = value.param_groups
    except Exception:  # noqa: BLE001 - the object's own code runs here
        return []
    return groups if isinstance(groups, list) else []
