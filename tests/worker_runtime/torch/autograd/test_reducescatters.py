"""The gradients of reducescatter, scaled as Horovod has them."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


@pytest.mark.parametrize("form", ["reducescatter", "grouped_reducescatter"])
@pytest.mark.parametrize(("op", "factor"), [(hvd.Average, 6.0), (hvd.Sum, 12.0)])
def test_the_parts_gradients_are_put_together_and_scaled(ranks: RankPool, form: str, op: int, factor: float) -> None:
    def body() -> object:
        x = torch.ones(3, requires_grad=True)
        options = {"op": op, "prescale_factor": 2.0, "postscale_factor": 3.0}
        if form == "reducescatter":
            result = hvd.reducescatter(x, **options)
        else:
            _, result, whole = hvd.grouped_reducescatter(
                [torch.ones(2, requires_grad=True), x, torch.tensor([3, 4])], **options
            )
            assert not whole.requires_grad
        (result * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[factor, factor, 2 * factor]] * 2


def test_the_gradient_that_was_given_is_left_alone(ranks: RankPool) -> None:
    """Horovod scales it in place."""

    def body() -> object:
        x, gradient = torch.ones(2, requires_grad=True), torch.ones(1)
        hvd.reducescatter(x, op=hvd.Sum, postscale_factor=5.0).backward(gradient)
        return x.grad.tolist(), gradient.tolist()

    assert ranks.run(body) == [([10.0, 10.0], [1.0])] * 2


def test_nothing_is_differentiable_that_needs_not_be(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            return [each.requires_grad for each in (hvd.reducescatter(x), *hvd.grouped_reducescatter([x]))]

    assert ranks.run(body) == [[False] * 2] * 2


def test_gradients_have_gradients(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.full((2,), hvd.rank() + 1.0).requires_grad_()
        (gradient,) = torch.autograd.grad((hvd.reducescatter(x) ** 3).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient.tolist(), x.grad.tolist()

    # with the average y = 1.5: 3 y^2, and of its square 36 y^3
    assert ranks.run(body) == [([6.75, 6.75], [121.5, 121.5])] * 2
