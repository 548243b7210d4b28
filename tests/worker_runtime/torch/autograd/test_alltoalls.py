"""The gradient of alltoall goes back the way that the rows came."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


@pytest.mark.parametrize("is_even", [True, False])
def test_each_rows_gradient_goes_back_to_its_rank(ranks: RankPool, is_even: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    def body() -> object:
        splits = None if is_even else ([1, 3] if hvd.rank() == 0 else [4, 0])
        x = torch.ones(4, requires_grad=True)
        received = hvd.alltoall(x, splits)
        if splits is not None:
            received, counts = received
            assert not counts.requires_grad
        (received * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    even, uneven = [[1.0, 1.0, 2.0, 2.0]] * 2, [[1.0, 2.0, 2.0, 2.0], [1.0] * 4]
    assert ranks.run(body) == (even if is_even else uneven)


def test_nothing_is_differentiable_that_needs_not_be(ranks: RankPool) -> None:
    def body() -> object:
        with torch.no_grad():
            return hvd.alltoall(torch.ones(2, requires_grad=True)).requires_grad

    assert ranks.run(body) == [False] * 2


def test_gradients_have_gradients(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.full((2,), hvd.rank() + 1.0).requires_grad_()
        (gradient,) = torch.autograd.grad((hvd.alltoall(x) ** 3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient.tolist(), x.grad.tolist()

    # 3 x^2, and of its square 36 x^3
    assert ranks.run(body) == [([3.0, 3.0], [36.0, 36.0]), ([12.0, 12.0], [288.0, 288.0])]
