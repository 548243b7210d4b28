"""The gradient of broadcast: the root's is an average, as Horovod has it."""

import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def test_the_gradient_goes_to_the_root(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        (hvd.broadcast(x, 1) * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[0.0, 0.0], [1.5, 1.5]]


def test_in_a_set_the_root_is_a_rank_of_the_job(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([1, 2])
        if not some.included():
            return None
        x = torch.ones(1, requires_grad=True)
        (hvd.broadcast(x, 2, process_set=some) * (hvd.rank() + 1)).sum().backward()
        return x.grad.item()

    assert ranks.run(body, size=3) == [None, 0.0, 2.5]


def test_nothing_is_differentiable_that_needs_not_be(ranks: RankPool) -> None:
    def body() -> object:
        with torch.no_grad():
            return hvd.broadcast(torch.ones(2, requires_grad=True), 0).requires_grad

    assert ranks.run(body) == [False] * 2


def test_gradients_have_gradients(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([hvd.rank() + 1.0]).requires_grad_()
        (gradient,) = torch.autograd.grad((hvd.broadcast(x, 0) ** 3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient.tolist(), x.grad.tolist()

    # 3 x^2 on the root, and of its square 36 x^3, halved by the average that the convention has once more
    assert ranks.run(body) == [([3.0], [18.0]), ([0.0], [0.0])]
