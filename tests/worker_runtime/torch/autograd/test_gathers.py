"""The gradients of allgather: averages, as Horovod has them."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


@pytest.mark.parametrize("form", ["allgather", "grouped_allgather"])
def test_the_gradient_is_averaged_and_cut_to_the_ranks_rows(ranks: RankPool, form: str) -> None:
    def body() -> object:
        x = torch.ones(hvd.rank() + 1, requires_grad=True)
        if form == "allgather":
            result = hvd.allgather(x)
        else:
            _, result, whole = hvd.grouped_allgather([torch.ones(2, requires_grad=True), x, torch.tensor([3])])
            assert not whole.requires_grad
        (result * torch.arange(3.0) * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[0.0], [1.5, 3.0]]


def test_a_rank_without_rows_has_an_empty_gradient(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2 * hvd.rank(), 3, requires_grad=True)
        hvd.allgather(x, "x").sum().backward()
        return list(x.grad.shape), x.grad.sum().item()

    assert ranks.run(body) == [([0, 3], 0.0), ([2, 3], 6.0)]


def test_it_works_in_a_set(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 2])
        if not some.included():
            return None
        x = torch.ones(1, requires_grad=True)
        (hvd.allgather(x, process_set=some) * torch.tensor([1.0, 5.0])).sum().backward()
        return x.grad.item()

    assert ranks.run(body, size=3) == [1.0, None, 5.0]


def test_nothing_is_differentiable_that_needs_not_be(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            return [each.requires_grad for each in (hvd.allgather(x), *hvd.grouped_allgather([x]))]

    assert ranks.run(body) == [[False] * 2] * 2


def test_gradients_have_gradients(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([hvd.rank() + 1.0]).requires_grad_()
        (gradient,) = torch.autograd.grad((hvd.allgather(x) ** 3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient.tolist(), x.grad.tolist()

    # 3 x^2, and of its square 36 x^3, halved by the average that the convention has once more
    assert ranks.run(body) == [([3.0], [18.0]), ([12.0], [144.0])]
