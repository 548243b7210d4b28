"""Which values a `Snapshot` cannot keep, or could not restore."""

from typing import Any

import torch

from worker_runtime.elastic.handlers import Stateful
from worker_runtime.elastic.parts import list_parts
from worker_runtime.errors import SnapshotError
from worker_runtime.snapshots.sharded import find_any_sharded

SHARDED = "{} cannot be in a Snapshot: {} lies on several ranks, and a rank may lack parts; write checkpoints instead"
HIDDEN = "{} is a {} with an object of the class {}, which has a state_dict: give each such object a name of its own"
TRAINED = "{} is or has a tensor that requires gradients, and restore() would make another one: give its module"


def refuse_unfit(name: str, value: Any) -> None:
    """Refuse what lies on several ranks, and a container of modules, say, in whose place `restore()` would put others.

    Raises:
        SnapshotError: the value is such a one.
    """
    if (kind := find_any_sharded(value)) is not None:
        raise SnapshotError(SHARDED.format(name, kind))
    if isinstance(value, Stateful):
        return
    for parent, part in list_parts(value, opens_objects=True):
        if isinstance(part, Stateful):
            raise SnapshotError(HIDDEN.format(name, type(parent).__name__, type(part).__name__))
        if isinstance(part, torch.Tensor) and part.is_leaf and part.requires_grad:
            raise SnapshotError(TRAINED.format(name))
