"""Each kind of tensors gets the groups of the backend that was chosen for it."""

from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.worker_runtime.backends.stubs import LIMIT, StubConnections, StubGroup
from worker_runtime.backends.choice import GLOO_ALONE, Choice
from worker_runtime.backends.composite import compose
from worker_runtime.backends.gated_group import GatedGroup
from worker_runtime.backends.nccl import NcclGroup
from worker_runtime.membership import Assignment, Backend

NUMBERS = Assignment(1, 2, 1, 2, 0, 1)


class Gloo:
    """Makes stubs for gloo's groups."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.group = StubGroup()

    def make(self, *arguments: object) -> tuple[Any, StubConnections]:
        """As `Gloo.make`."""
        self.asked.append(arguments)
        return self.group, StubConnections()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gloo_is_asked_and_nothing_is_put_around_its_groups(device: str) -> None:
    gloo = Gloo()
    make = compose(GLOO_ALONE, gloo.make, HashStore(), NUMBERS, LIMIT)
    group, _ = make("set/3/x", 1, 2, device, LIMIT)
    assert group is gloo.group
    assert gloo.asked == [("set/3/x", 1, 2, device, LIMIT)]


def test_cuda_tensors_take_nccl_and_cpu_tensors_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = Gloo()

    class Nccl(StubGroup):
        def __init__(self, *_: object) -> None:
            super().__init__()

        class Options:
            config = StubGroup()

    monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupNCCL", Nccl, raising=False)
    make = compose(Choice(cuda=Backend.NCCL), gloo.make, HashStore(), NUMBERS, LIMIT)
    group, interruptible = make("set/3/cuda", 1, 2, "cuda", LIMIT)
    assert isinstance(group, NcclGroup)
    assert interruptible is group
    assert gloo.asked == []
    assert make("set/3/cpu", 1, 2, "cpu", LIMIT)[0] is gloo.group


def test_a_backend_that_is_not_there_any_more_is_an_error_of_making_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatedGroup, "__init__", lambda *_: pytest.fail("a group was made"))
    monkeypatch.setattr("worker_runtime.backends.gated._list_faulty", lambda *_: [0])
    if dist.is_ucc_available():
        pytest.skip("this torch has a UCC")
    with pytest.raises(RuntimeError, match="no UCC"):
        compose(Choice(cpu=Backend.UCC), Gloo().make, HashStore(), NUMBERS, LIMIT)("set/3/cpu", 1, 2, "cpu", LIMIT)
