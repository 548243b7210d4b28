"""Groups of UCC: without it here, stubs stand for it."""

from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.worker_runtime.groups.backends.stubs import LIMIT, StubConnections, StubGroup, run_members
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice, compose
from worker_runtime.groups.backends.nccl import NcclGroup
from worker_runtime.groups.backends.ucc import Gated, GatedGroup, Ucc
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.torch_store import open_torch_store
from worker_runtime.rendezvous import Assignment, Backend

STORE = HashStore()


def open_store(*_: object) -> HashStore:
    return STORE


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of torch's that forgets."""
    for name in ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map"):
        monkeypatch.setattr(dist.Backend, name, dict(getattr(dist.Backend, name)))
    monkeypatch.setattr(dist.Backend, "backend_list", list(dist.Backend.backend_list))


def test_a_plugin_makes_the_group() -> None:
    calls: list[tuple[Any, ...]] = []
    group = object()

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> object:
        store.set("key", b"value")
        calls.append((rank, size, timeout))
        return group

    dist.Backend.register_backend("ucc", make, devices=["cpu"])
    assert cast("object", Ucc(open_store).connect("prefix", 1, 3, LIMIT)) is group
    assert calls == [(1, 3, LIMIT)]
    assert STORE.get("key") == b"value"


def test_a_plugin_may_take_its_arguments_as_one_value() -> None:
    def make(options: Any, more: object) -> object:
        assert more is None
        return options.group_rank, options.group_size, options.timeout

    dist.Backend.register_backend("ucc", make, extended_api=True, devices=["cpu"])
    assert cast("object", Ucc(open_store).connect("prefix", 1, 3, LIMIT)) == (1, 3, LIMIT)


def test_the_ucc_of_torch_is_preferred_to_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.Backend.register_backend("ucc", lambda *_: pytest.fail("the plug-in was asked"), devices=["cpu"])
    monkeypatch.setattr(dist, "is_ucc_available", lambda: True)
    own = SimpleNamespace(name="torch's own")
    monkeypatch.setattr(torch._C._distributed_c10d, "ProcessGroupUCC", lambda *_: own, raising=False)
    assert cast("object", Ucc(open_store).connect("prefix", 0, 2, LIMIT)) is own


def test_without_a_ucc_of_torch_or_a_plugin_connecting_is_an_error() -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has a UCC")
    with pytest.raises(RuntimeError, match="no UCC"):
        Ucc(open_store).connect("prefix", 0, 2, LIMIT)


def test_a_real_ucc_passes_its_test() -> None:
    if not dist.is_ucc_available():
        pytest.skip("the real UCC: this torch was built without it, and no plug-in registers it")

    def member(rank: int, gloo: Gloo) -> float:
        group, _ = Gated(gloo.make, Ucc(partial(open_torch_store, gloo.store, gloo.address)).connect, LIMIT).make(
            "set/1/cpu", rank, 2, "cpu", LIMIT
        )
        x = torch.ones(8)
        group.allreduce(x, dist.ReduceOp.SUM).wait(LIMIT)
        return float(x.sum())

    assert run_members(2, member) == [16.0, 16.0]


NUMBERS = Assignment(1, 2, 1, 2, 0, 1)


class StubGloo:
    """Makes stubs for gloo's groups."""

    store, address, operation_limit = HashStore(), "127.0.0.1", LIMIT

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.group = StubGroup()

    def make(self, *arguments: object) -> tuple[Any, StubConnections]:
        """As `Gloo.make`."""
        self.asked.append(arguments)
        return self.group, StubConnections()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gloo_makes_the_groups_and_nothing_wraps_them(device: str) -> None:
    gloo = StubGloo()
    make = compose(GLOO_ALONE, cast("Gloo", gloo), NUMBERS)
    group, _ = make("set/3/x", 1, 2, device, LIMIT)
    assert group is gloo.group
    assert gloo.asked == [("set/3/x", 1, 2, device, LIMIT)]


def test_cuda_tensors_take_nccl_and_cpu_tensors_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = StubGloo()

    class Nccl(StubGroup):
        def __init__(self, *_: object) -> None:
            super().__init__()

        class Options:
            config = StubGroup()

    monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupNCCL", Nccl, raising=False)
    make = compose(Choice(cuda=Backend.NCCL), cast("Gloo", gloo), NUMBERS)
    group, interruptible = make("set/3/cuda", 0, 2, "cuda", LIMIT)
    assert isinstance(group, NcclGroup)
    assert interruptible is group
    assert gloo.asked == []
    assert make("set/3/cpu", 1, 2, "cpu", LIMIT)[0] is gloo.group


def test_a_missing_backend_is_an_error_of_making_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatedGroup, "__init__", lambda *_: pytest.fail("a group was made"))
    monkeypatch.setattr("worker_runtime.groups.backends.ucc._list_faulty", lambda *_: [0])
    if dist.is_ucc_available():
        pytest.skip("this torch has a UCC")
    with pytest.raises(RuntimeError, match="no UCC"):
        compose(Choice(cpu=Backend.UCC), cast("Gloo", StubGloo()), NUMBERS)("set/3/cpu", 0, 2, "cpu", LIMIT)
