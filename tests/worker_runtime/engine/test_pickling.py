"""What another rank could not use is not pickled."""

import enum
import io
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from worker_runtime.engine.pickling import dump, find_pickling_error


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The default process group is that of two ranks, of which the other one is not there."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_dtensor_is_pickled_where_each_rank_has_all_of_it() -> None:
    mesh = init_device_mesh("cpu", (2,))
    whole, part = (DTensor.from_local(torch.ones(2), mesh, [kind]) for kind in (Replicate(), Shard(0)))

    file = io.BytesIO()
    dump([whole], file)
    assert pickle.loads(file.getvalue())[0].to_local().tolist() == [1, 1]  # noqa: S301 - pickled above
    assert not find_pickling_error([whole])

    with pytest.raises(ValueError, match=r"a DTensor has another part on each rank.*x.full_tensor\(\)"):
        dump({"weight": [part]}, file)
    assert "x.to_local()" in find_pickling_error(part)


def test_a_class_of_the_script_becomes_the_other_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        return enum.Enum("Phase", {"WARMUP": 1}, module="__main__", qualname="Phase")

    script = sys.modules["__main__"]
    ours, theirs = make(), make()
    monkeypatch.setattr(script, "Phase", ours, raising=False)
    file = io.BytesIO()
    dump({"phase": ours.WARMUP}, file)

    monkeypatch.setattr(script, "Phase", theirs)
    assert pickle.loads(file.getvalue())["phase"] is theirs.WARMUP  # noqa: S301 - pickled above
    monkeypatch.delattr(script, "Phase")
    assert pickle.loads(file.getvalue())["phase"].value == 1  # noqa: S301 - pickled above
