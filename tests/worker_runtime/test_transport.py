"""Whether NCCL connects ranks that share a card, which is the first that `make gpu` asks; and what if it does not."""

import os
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist

import worker_runtime.torch as hvd
from rendezvous.bootstrap import Backend, read_backend
from tests.house.gpu import TRANSPORT
from tests.worker_runtime.devices import CPU, CUDA, describe_rank
from tests.worker_runtime.ranks import RankPool, Ranks
from tests.worker_runtime.transport import SHARED, add, describe, find_objection
from worker_runtime.groups.backends.nccl import SharedDeviceError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_nccl_connects_ranks_that_share_a_card(
    nccl_objection: str, record_property: Callable[[str, object], None]
) -> None:
    record_property(TRANSPORT, describe(nccl_objection))
    if SHARED in nccl_objection:
        pytest.skip(describe(nccl_objection))
    assert nccl_objection == ""


@pytest.mark.gpu
@needs_gpu
@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")
def test_the_error_for_two_ranks_on_one_card_says_what_to_do() -> None:
    def body() -> object:
        torch.cuda.set_device(0)
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(torch.ones(1 << 16, device=CUDA), op=hvd.Sum)
        return str(caught.value)

    with Ranks(2, CUDA, share_cards=False) as ranks:
        assert any("torch.cuda.set_device(hvd.local_rank())" in text for text in ranks.run(body))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankPool]:
    """Ranks of its own, of a torch that seems to have NCCL."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    pool = RankPool(count=2)
    yield pool
    pool.close()


def name_backend() -> str | None:
    return read_backend(os.environ)


def refuse() -> NoReturn:
    raise hvd.HorovodInternalError(str(SharedDeviceError("cuda:0", 1)))


def hang() -> NoReturn:
    time.sleep(600)
    raise AssertionError


def test_ranks_that_are_connected_keep_torchs_choice(
    rank_pools: dict[str, RankPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    pool = rank_pools[CPU]
    assert find_objection(pool, add, CPU) == ""
    assert pool.run(name_backend) == [None, None]


@pytest.mark.parametrize(
    ("exchange", "said"), [(refuse, "two workers of one host use the same GPU"), (hang, "did not finish in time")]
)
def test_ranks_that_nccl_does_not_connect_use_gloo_from_then_on(
    pool: RankPool, exchange: Callable[[], float], said: str
) -> None:
    objection = find_objection(pool, exchange, CPU, limit_seconds=1.0)
    assert said in objection
    assert describe(objection).startswith("NCCL of one rank alone; gloo between ranks, on CUDA tensors, since NCCL")
    assert pool.run(name_backend, size=2) == [Backend.GLOO] * 2
    assert pool.run(name_backend, size=1) == [None]


def test_only_ranks_that_must_share_a_card_are_hosts_of_their_own_to_nccl() -> None:
    assert [describe_rank(CUDA, rank, 2, cards=2) for rank in range(2)] == [{}, {}]
    described = [describe_rank(CUDA, rank, 3, cards=1) for rank in range(3)]
    assert len({variables["NCCL_HOSTID"] for variables in described}) == 3
    assert {variables["NCCL_SOCKET_IFNAME"] for variables in described} == {"lo"}
    assert describe_rank(CPU, 0, 3, cards=1) == {}
