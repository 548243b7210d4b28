"""UCC's groups: torch's own, or a plug-in's. Without a UCC here, stubs stand for both."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.worker_runtime.backends.stubs import LIMIT, make_gloo_group, run_members
from worker_runtime.backends import gate
from worker_runtime.backends.gated import Gated
from worker_runtime.backends.ucc import Ucc
from worker_runtime.gloo import Gloo

STORE = HashStore()


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of torch's that forgets."""
    for name in ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map"):
        monkeypatch.setattr(dist.Backend, name, dict(getattr(dist.Backend, name)))
    monkeypatch.setattr(dist.Backend, "backend_list", list(dist.Backend.backend_list))


def test_a_plugin_makes_the_group() -> None:
    calls: list[tuple[Any, ...]] = []
    group = object()

    def make(store: Any, rank: int, size: int, timeout: timedelta) -> object:  # noqa: ANN401 - torch leaves it untyped
        store.set("key", b"value")
        calls.append((rank, size, timeout))
        return group

    dist.Backend.register_backend("ucc", make, devices=["cpu"])
    assert cast("object", Ucc(STORE).connect("prefix", 1, 3, LIMIT)) is group
    assert calls == [(1, 3, LIMIT)]
    assert STORE.get("prefix/key") == b"value"


def test_a_plugin_may_take_its_arguments_as_one_value() -> None:
    def make(options: Any, more: object) -> object:  # noqa: ANN401 - torch leaves it untyped
        assert more is None
        return options.group_rank, options.group_size, options.timeout

    dist.Backend.register_backend("ucc", make, extended_api=True, devices=["cpu"])
    assert cast("object", Ucc(STORE).connect("prefix", 1, 3, LIMIT)) == (1, 3, LIMIT)


def test_torchs_own_goes_before_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.Backend.register_backend("ucc", lambda *_: pytest.fail("the plug-in was asked"), devices=["cpu"])
    monkeypatch.setattr(dist, "is_ucc_available", lambda: True)
    own = SimpleNamespace(name="torch's own")
    monkeypatch.setattr(torch._C._distributed_c10d, "ProcessGroupUCC", lambda *_: own, raising=False)
    assert cast("object", Ucc(STORE).connect("prefix", 0, 2, LIMIT)) is own


def test_without_either_it_is_an_error() -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has a UCC")
    with pytest.raises(RuntimeError, match="no UCC"):
        Ucc(STORE).connect("prefix", 0, 2, LIMIT)


def test_half_precision_goes_to_gloo_and_single_to_the_plugin() -> None:
    reduced: list[torch.dtype] = []

    class Spy:
        def __init__(self, group: Any) -> None:  # noqa: ANN401 - torch leaves it untyped
            self._group = group

        def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Any:  # noqa: ANN401 - the same
            reduced.append(tensor.dtype)
            return self._group.allreduce(tensor, op)

    dist.Backend.register_backend("ucc", lambda *arguments: Spy(make_gloo_group(*arguments)), devices=["cpu"])

    def member(rank: int, gloo: Gloo) -> list[list[float]]:
        group, _ = Gated(gate.UCC, gloo.make, Ucc(gloo.store).connect, LIMIT).make("set/1/cpu", rank, 2, "cpu", LIMIT)
        tensors = [torch.full((2,), rank + 1.0, dtype=dtype) for dtype in (torch.float16, torch.float32)]
        for tensor in tensors:
            group.allreduce(tensor, dist.ReduceOp.SUM).wait(LIMIT)
        group.barrier().wait(LIMIT)
        return [tensor.tolist() for tensor in tensors]

    assert run_members(2, member) == [[[3.0, 3.0], [3.0, 3.0]]] * 2
    assert reduced == [torch.float32] * 4  # the canary's, and the test's


def test_a_real_ucc_passes_its_test() -> None:
    if not dist.is_ucc_available():
        pytest.skip("the real UCC: this torch was built without it, and no plug-in registers it")

    def member(rank: int, gloo: Gloo) -> float:
        group, _ = Gated(gate.UCC, gloo.make, Ucc(gloo.store).connect, LIMIT).make("set/1/cpu", rank, 2, "cpu", LIMIT)
        x = torch.ones(8)
        group.allreduce(x, dist.ReduceOp.SUM).wait(LIMIT)
        group.barrier().wait(LIMIT)
        return float(x.sum())

    assert run_members(2, member) == [16.0, 16.0]
