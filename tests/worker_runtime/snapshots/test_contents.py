"""A state as bytes, and back: containers, keys and leaves of any kind."""

from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest
import torch

from worker_runtime.snapshots.contents import Packer, ShardedStateError, unpack
from worker_runtime.snapshots.copies import clone, note_streams

# Each is its own class, which a frame must not lose.
STATE = OrderedDict(
    text="ä",
    nothing=None,
    numbers=[1, 2.5, (3, True)],
    path=Path("/data"),
    weights={"a": torch.arange(3), 4: [torch.ones(2, 2)]},
)


def carry(packer: Packer, states: dict[str, Any]) -> dict[str, Any]:
    """Packed, copied into memory, and unpacked."""
    description, tensors = packer.pack(states)
    memory = bytearray(packer.data_bytes)
    torch._foreach_copy_(packer.view(memory), tensors)
    found = unpack(description, memory, ())
    memory[:] = bytes(len(memory))
    return found


def test_a_state_comes_back_as_it_was() -> None:
    found = carry(Packer(), {"state": STATE, "step": 7})
    assert (found["step"], type(found["state"])) == (7, OrderedDict)
    weights, expected = found["state"].pop("weights"), STATE["weights"]
    assert found["state"] == {key: value for key, value in STATE.items() if key != "weights"}
    assert torch.equal(weights["a"], expected["a"])
    assert torch.equal(weights[4][0], expected[4][0])


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e5m2])
def test_a_tensor_inside_of_an_object_keeps_its_dtype(dtype: torch.dtype) -> None:
    recent = deque([torch.arange(3).to(dtype), torch.ones(3, 1).to(dtype).t()])
    found = carry(Packer(), {"recent": recent, "weight": torch.ones(1)})["recent"]
    assert [(each.dtype, each.float().tolist()) for each in found] == [(dtype, [0, 1, 2]), (dtype, [[1, 1, 1]])]


def test_other_leaves_may_change_and_the_layout_stays() -> None:
    packer = Packer()
    carry(packer, {"state": {"step": 1, "weight": torch.ones(2)}})
    layout = packer.layout
    found = carry(packer, {"state": {"step": 2, "weight": torch.zeros(2)}})["state"]
    assert (found["step"], found["weight"].tolist(), packer.layout) == (2, [0, 0], layout)
    carry(packer, {"state": {"step": 2, "weight": torch.zeros(3)}})
    assert packer.layout != layout


@pytest.mark.parametrize("changed", [{"b": torch.ones(1)}, {"a": [torch.ones(1)]}, {"a": torch.ones(1), "b": 1}])
def test_another_frame_of_the_same_tensors_is_noticed(changed: dict[str, Any]) -> None:
    packer = Packer()
    carry(packer, {"state": {"a": torch.ones(1)}})
    assert carry(packer, {"state": changed})["state"].keys() == changed.keys()


class DTensor(torch.Tensor):
    """As the class of that name."""


DTensor.__module__ = "torch.distributed.tensor"


def test_a_tensor_that_lies_on_several_ranks_is_refused_wherever_it_is() -> None:
    with pytest.raises(ShardedStateError, match="DTensor"):
        Packer().pack({"state": [{"weight": torch.ones(2).as_subclass(DTensor)}]})


def test_clones_are_used_again_while_they_fit() -> None:
    clones: list[torch.Tensor] = []
    clone([torch.ones(2)], clones)
    (first,) = clones
    clone([torch.zeros(2)], clones)
    assert clones[0] is first
    assert first.tolist() == [0, 0]
    clone([torch.ones(3)], clones)
    assert clones[0].tolist() == [1, 1, 1]
    with note_streams(clones)():
        assert clones[0].device.type == "cpu"


def test_a_sparse_tensor_and_a_dense_one_may_change_places() -> None:
    packer = Packer()
    dense, sparse = torch.eye(2), torch.ones(2, 2).to_sparse()
    carry(packer, {"first": dense, "second": sparse})
    found = carry(packer, {"first": sparse, "second": dense})
    assert torch.equal(found["first"].to_dense(), torch.ones(2, 2))
    assert torch.equal(found["second"], torch.eye(2))


def test_a_tensor_keeps_its_memory_format() -> None:
    image = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    found = carry(Packer(), {"image": image, "rows": torch.arange(8)[::2]})
    assert (found["image"].tolist(), found["image"].stride()) == (image.tolist(), image.stride())
    assert (found["rows"].tolist(), found["rows"].stride()) == ([0, 2, 4, 6], (1,))
