"""What a plain value of a `Snapshot` cannot have inside: objects that the script would use in vain after a restore."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker_runtime.errors import SnapshotError
from worker_runtime.torch import Snapshot

CONTAINERS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda layers: dict(enumerate(layers)),
    "a list in a dict": lambda layers: {"layers": layers},
    "an object": lambda layers: SimpleNamespace(layer=layers[0]),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_of_modules_is_refused_by_name(container: str) -> None:
    layers = CONTAINERS[container]([torch.nn.Linear(1, 1)])
    sentence = "layers is a (list|tuple|dict|SimpleNamespace) with an object of the class Linear.* a name of its own"
    with pytest.raises(SnapshotError, match=sentence):
        Snapshot(layers=layers)
    loop: list[Any] = [1, {}]
    loop.append(loop)
    kept: Any = Snapshot(layers=loop)
    with pytest.raises(SnapshotError, match=sentence):
        kept.layers = layers
    kept.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1)])


@pytest.mark.parametrize("make", [lambda it: it, lambda it: {"first": [it]}], ids=["itself", "in a list"])
def test_a_tensor_that_is_trained_is_refused_by_name(make: Any) -> None:
    with pytest.raises(SnapshotError, match="weight is or has a tensor that requires gradients"):
        Snapshot(weight=make(torch.zeros(1, requires_grad=True)))
    Snapshot(loss=make(torch.zeros(1, requires_grad=True) + 1))
