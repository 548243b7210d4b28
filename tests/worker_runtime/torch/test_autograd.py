"""The gradients of the collectives, as Horovod defines them."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives import Reduction


@pytest.mark.parametrize(("op", "expected"), [(hvd.Sum, [9.0, 9.0]), (hvd.Average, [4.5, 4.5])])
def test_the_gradient_of_an_allreduce_is_combined_likewise(
    ranks: RankPool, op: Reduction, expected: list[float]
) -> None:
    def body() -> object:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (hvd.allreduce(x, op=op, prescale_factor=3.0) * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [expected] * 2


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_a_minimum_maximum_or_product_has_no_gradient(ranks: RankPool, op: Reduction) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        result = hvd.allreduce(x, op=op)
        with pytest.raises(NotImplementedError, match="has no gradient"):
            result.sum().backward()

    ranks.run(body)


def test_the_gradient_of_an_allgather_is_averaged_and_cut_to_the_ranks_rows(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(hvd.rank() + 1, requires_grad=True)
        (hvd.allgather(x) * torch.arange(3.0) * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[0.0], [1.5, 3.0]]


def test_the_gradient_of_a_broadcast_goes_to_the_root(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, 1) * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[0.0, 0.0], [1.5, 1.5]]
