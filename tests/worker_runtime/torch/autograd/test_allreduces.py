"""The gradients of allreduce, against torch's own on one process that has all ranks' inputs."""

import threading
from collections.abc import Callable

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

INPUTS = torch.tensor(
    [
        [1.0, -2.0, 3.0, 0.0, 0.0, 2.0],
        [2.0, -2.0, -1.0, 4.0, 0.0, -3.0],
        [0.5, 5.0, 3.0, 2.0, 1.0, 0.5],
    ],
    dtype=torch.float64,
)
GRADIENTS = torch.arange(1.0, 19.0, dtype=torch.float64).view(3, 6)  # of each rank for the result

Reduce = Callable[[torch.Tensor], torch.Tensor]
REDUCTIONS: dict[str, tuple[int, Reduce]] = {
    "Average": (0, lambda x: x.mean(0)),
    "Sum": (1, lambda x: x.sum(0)),
    "Min": (3, lambda x: x.amin(0)),  # amin and amax share the gradient among ties equally
    "Max": (4, lambda x: x.amax(0)),
    "Product": (5, lambda x: x.prod(0)),  # prod is right with zeros
}


def compute_reference(reduce: Reduce, size: int, pre: float, post: float) -> list[list[float]]:
    """The gradients of all ranks' inputs, of the sum of all ranks' losses."""
    x = INPUTS[:size].clone().requires_grad_()
    result = post * reduce(pre * x)
    (result * GRADIENTS[:size].sum(0)).sum().backward()
    return x.grad.tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("pre", "post"), [(1.0, 1.0), (3.0, 0.5), (-2.0, 1.0), (1.0, -4.0)])
@pytest.mark.parametrize("form", ["allreduce", "grouped_allreduce"])
def test_the_gradient_is_that_of_the_sum_of_all_losses(  # noqa: PLR0917 - what it is repeated for
    ranks: RankPool, size: int, name: str, pre: float, post: float, form: str
) -> None:
    op, reduce = REDUCTIONS[name]
    inputs, gradients = INPUTS, GRADIENTS

    def body() -> object:
        x = inputs[hvd.rank()].clone().requires_grad_()
        options = {"op": op, "prescale_factor": pre, "postscale_factor": post}
        if form == "allreduce":
            result = hvd.allreduce(x, **options)
        else:
            other = torch.ones(2, requires_grad=True)
            result, _, whole = hvd.grouped_allreduce([x, other, torch.tensor([4])], **options)
            assert not whole.requires_grad
        (result * gradients[hvd.rank()]).sum().backward()
        return x.grad.tolist()

    for found, expected in zip(ranks.run(body, size=size), compute_reference(reduce, size, pre, post), strict=True):
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_have_the_dtype_of_the_input(ranks: RankPool, dtype: torch.dtype, name: str) -> None:
    op, _ = REDUCTIONS[name]

    def body() -> object:
        x = torch.tensor([2.0], dtype=dtype, requires_grad=True)
        hvd.allreduce(x, op=op).sum().backward()
        return x.grad.dtype == dtype, x.grad.tolist()

    expected = {"Average": 1.0, "Sum": 2.0, "Min": 1.0, "Max": 1.0, "Product": 4.0}[name]
    assert ranks.run(body) == [(True, [expected])] * 2


@pytest.mark.parametrize("op", [0, 1])
def test_complex_numbers_have_gradients(ranks: RankPool, op: int) -> None:
    def body() -> object:
        x = torch.tensor([1.0 + 2.0j]).requires_grad_()
        hvd.allreduce(x, op=op).imag.sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[1.0j if op == 0 else 2.0j]] * 2


def test_adasum_combines_the_gradients_by_adasum_as_in_horovod(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        gradient = torch.zeros(2)
        gradient[hvd.rank()] = 3.0
        hvd.allreduce(x, op=hvd.Adasum).backward(gradient)
        return x.grad.tolist()

    assert ranks.run(body) == [[3.0, 3.0]] * 2


def test_gradients_pass_through_compression(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
        return x.grad.dtype == torch.float32, x.grad.tolist()

    assert ranks.run(body) == [(True, [2.0, 2.0])] * 2


def test_inputs_that_are_no_leaves_and_gradients_that_are_no_plain_tensors(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = hvd.allreduce((2 * x).t(), op=hvd.Sum)
        y.sum().backward()  # its gradient is one number, expanded
        return x.grad.tolist()

    assert ranks.run(body) == [[[4.0, 4.0], [4.0, 4.0]]] * 2


def test_nothing_is_differentiable_that_needs_not_be(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            quiet = hvd.allreduce(x), *hvd.grouped_allreduce([x])
        plain = hvd.allreduce(x.detach()), hvd.synchronize(hvd.allreduce_async(x))
        return [each.requires_grad for each in (*quiet, *plain)]

    assert ranks.run(body) == [[False] * 4] * 2


def test_ranks_may_differ_in_who_wants_a_gradient_of_a_group(ranks: RankPool) -> None:
    def body() -> object:
        x, y = torch.ones(1, requires_grad=hvd.rank() == 0), torch.ones(1, requires_grad=True)
        first, second = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        (first + second).sum().backward()
        return None if x.grad is None else x.grad.item(), y.grad.item()

    assert ranks.run(body) == [(2.0, 2.0), (None, 2.0)]


@pytest.mark.parametrize("name", ["Average", "Sum", "Min", "Max"])
@pytest.mark.parametrize(("pre", "post"), [(1.0, 1.0), (-2.0, 0.5)])
@pytest.mark.parametrize("form", ["allreduce", "grouped_allreduce"])
def test_gradients_have_gradients(ranks: RankPool, name: str, pre: float, post: float, form: str) -> None:
    op, combine = REDUCTIONS[name]
    inputs = INPUTS + torch.linspace(0.0, 0.1, 18).view(3, 6)  # all different: amin has no second derivative at ties

    def penalize(combined: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> None:
        (gradient,) = torch.autograd.grad((combined**3 * weights).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    def body() -> object:
        x = inputs[hvd.rank()].clone().requires_grad_()
        options = {"op": op, "prescale_factor": pre, "postscale_factor": post}
        result = hvd.allreduce(x, **options) if form == "allreduce" else hvd.grouped_allreduce([x], **options)[0]
        penalize(result, x, GRADIENTS[hvd.rank()])
        return x.grad.tolist()

    whole = inputs.clone().requires_grad_()
    penalize(post * combine(pre * whole), whole, GRADIENTS.sum(0))
    torch.testing.assert_close(torch.tensor(ranks.run(body, size=3), dtype=torch.float64), whole.grad)


def test_a_second_derivative_of_a_product_is_a_clear_error(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(1, requires_grad=True)
        (gradient,) = torch.autograd.grad((hvd.allreduce(x, op=hvd.Product) ** 2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="op=Product can be differentiated once only"):
            gradient.sum().backward()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [2.0, 2.0]


def test_an_input_that_was_changed_before_backward_is_an_error(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(1, requires_grad=True)
        y = x * 1
        result = hvd.allreduce(y, op=hvd.Max)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()

    ranks.run(body)


def test_ranks_may_run_backward_in_different_orders(ranks: RankPool) -> None:
    """The gradients' operations are named after the forward calls; Horovod's are counted, and would be mixed up."""

    def body() -> object:
        first, second, third = (torch.ones(1, requires_grad=True) for _ in range(3))
        results = [
            hvd.allreduce(first, op=hvd.Sum),
            hvd.allreduce(second, op=hvd.Sum) * 10,
            hvd.allreduce(third, op=hvd.Sum, name="third") * 100,
        ]

        def run_backward(index: int) -> None:
            results[index].sum().backward()

        threads = [threading.Thread(target=run_backward, args=(index,)) for index in range(3)]
        order = threads if hvd.rank() == 0 else threads[::-1]
        for thread in order:
            thread.start()
        for thread in order:
            thread.join(20)
        return first.grad.item(), second.grad.item(), third.grad.item()

    assert ranks.run(body) == [(2.0, 20.0, 200.0)] * 2


def test_a_network_with_an_allreduce_inside_learns_as_one_on_all_data_does(ranks: RankPool) -> None:
    def body() -> object:
        torch.manual_seed(0)
        weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
        data = torch.randn(4, 3, dtype=torch.float64)
        mine = data[2 * hvd.rank() : 2 * hvd.rank() + 2]
        mean = hvd.allreduce((mine @ weight).mean(0), op=hvd.Average, name="mean")
        ((mine @ weight) - mean).square().sum().backward()
        summed = hvd.allreduce(weight.grad, op=hvd.Sum)
        whole = weight.detach().clone().requires_grad_()
        ((data @ whole) - (data @ whole).mean(0)).square().sum().backward()
        return torch.allclose(summed, whole.grad)

    assert ranks.run(body) == [True, True]
