"""The gradients of all differentiable collectives, against torch's own on one process that has all ranks' inputs."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.operations import call
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.autograd import functions as horovod

pytestmark = pytest.mark.devices

ROWS = 6  # of each rank: they can be divided among one, two and three
REDUCTIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    hvd.Average: lambda x: x.mean(0),
    hvd.Sum: lambda x: x.sum(0),
    hvd.Min: lambda x: x.amin(0),  # amin and amax share the gradient among ties equally
    hvd.Max: lambda x: x.amax(0),
    hvd.Product: lambda x: x.prod(0),  # prod is right with zeros
}
FACTORS = [(1.0, 1.0), (3.0, 0.5), (-2.0, 1.0), (1.0, -4.0)]


class Case(NamedTuple):
    """A differentiable call, and the same on one process.

    options: the options of the call, besides the process set.
    compute: the result of a rank, of all ranks' inputs in one tensor.
    scale: Horovod's gradient of an input, divided by the derivative of the sum of all ranks' losses.
    second: the same of what a gradient is made of, where that is a collective with such a scale of its own.
    """

    form: str
    options: dict[str, object]
    compute: Callable[[torch.Tensor, int], torch.Tensor]
    scale: float = 1.0
    second: float = 1.0


def list_cases(size: int, factors: Sequence[tuple[float, float]] = FACTORS[:1]) -> Iterator[Case]:
    """All forms and operations with these factors."""
    for prefix in ("", "grouped_"):
        for (op, reduce), (pre, post) in itertools.product(REDUCTIONS.items(), factors):
            options = {"op": op, "prescale_factor": pre, "postscale_factor": post}

            def combine(x: torch.Tensor, reduce: object = reduce, pre: float = pre, post: float = post) -> torch.Tensor:
                return post * reduce(pre * x)

            yield Case(f"{prefix}allreduce", options, lambda x, _, combine=combine: combine(x))
            if op in (hvd.Average, hvd.Sum):
                part = ROWS // size

                def scatter(x: torch.Tensor, rank: int, combine: object = combine, part: int = part) -> torch.Tensor:
                    return combine(x)[rank * part : (rank + 1) * part]

                yield Case(f"{prefix}reducescatter", options, scatter, float(size), 1 / size)
        yield Case(f"{prefix}allgather", {}, lambda x, _: x.flatten(), 1 / size)
    yield Case("broadcast", {"root_rank": size - 1}, lambda x, _: x[-1], 1 / size)
    yield Case("alltoall", {}, lambda x, rank: x.view(size, size, -1)[:, rank].flatten())


def scale_gradient(x: torch.Tensor, scale: float) -> torch.Tensor:
    """The same values, whose gradient is scaled."""
    return x * scale + (x * (1 - scale)).detach()


def differentiate(losses: torch.Tensor, x: torch.Tensor, *, twice: bool) -> torch.Tensor:
    """The gradient of x, or that of its squares."""
    (gradient,) = torch.autograd.grad(losses, x, create_graph=twice)
    return torch.autograd.grad(gradient.square().sum(), x)[0] if twice else gradient


def compare(case: Case, where: hvd.ProcessSet, inputs: torch.Tensor, weights: torch.Tensor, *, twice: bool) -> None:
    """Assert that this rank's gradient is that of one process."""
    rank = where.rank()
    x = inputs[rank].clone().requires_grad_()
    result = call(hvd, case.form, x, **case.options, process_set=where)
    found = differentiate(((result**3 + result) * weights[rank, : len(result)]).sum(), x, twice=twice)
    whole = inputs.clone().requires_grad_()
    scaled = scale_gradient(whole, case.scale)
    results = [case.compute(scaled, other) for other in range(len(inputs))]
    losses = sum(((each**3 + each) * weights[other, : len(each)]).sum() for other, each in enumerate(results))
    expected = differentiate(losses, whole, twice=twice)[rank] * (case.second if twice else 1.0)
    assert torch.allclose(found, expected), f"{case.form} {case.options} of {inputs}: {found} is not {expected}"


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_a_gradient_is_that_of_one_process_in_horovods_scale(ranks: RankPool, *, twice: bool) -> None:
    """Ties and zeros are among the inputs of first derivatives; `amin` has no second derivative at ties."""

    def body() -> int:
        chance, count = random.Random(1), 0  # noqa: S311 - inputs, no secret
        for size in (2, 3) if twice else (1, 2, 3):
            where = hvd.add_process_set(list(range(size))) if size < hvd.size() else hvd.global_process_set
            for case in list_cases(size, FACTORS[::2] if twice else FACTORS):
                flat = chance.sample(range(1, 60), 3 * ROWS) if twice else chance.choices((-2, -1, 0, 1, 2), k=3 * ROWS)
                inputs = torch.tensor(flat, dtype=torch.float64).view(3, ROWS)[:size] / 4
                weights = torch.rand(3, 3 * ROWS, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
                if where.included() and not (twice and case.options.get("op") == hvd.Product):
                    compare(case, where, inputs, weights, twice=twice)
                count += 1
        return count

    assert min(ranks.run(body, size=3)) > 50


def test_horovods_functions_take_its_arguments_and_are_differentiable(ranks: RankPool) -> None:
    everyone, how = hvd.global_process_set, (hvd.Sum, 2.0, 1.0)

    def body() -> object:
        x = torch.ones(2, 1, requires_grad=True)
        results = (
            horovod.HorovodAllreduce.apply(x, None, "a", *how, everyone),
            *horovod.HorovodGroupedAllreduce.apply(None, None, *how, everyone, x, x),
            horovod.HorovodAllgather.apply(x, "g", everyone),
            *horovod.HorovodGroupedAllgather.apply(None, everyone, x),
            horovod.HorovodBroadcast.apply(x, 0, None, everyone),
            horovod.HorovodAlltoall.apply(x, [1, 1], None, everyone)[0],
            horovod.HorovodReducescatter.apply(x, None, hvd.Sum, everyone, 2.0, 1.0),
            *horovod.HorovodGroupedReducescatter.apply(None, hvd.Sum, everyone, 2.0, 1.0, x),
        )
        sum(result.sum() for result in results).backward()
        return [result.sum().item() for result in results], x.grad is not None

    assert ranks.run(body) == [([8.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 4.0, 4.0], True)] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_gradient_has_the_dtype_of_its_input(ranks: RankPool, dtype: torch.dtype) -> None:
    expected = {hvd.Average: 1.0, hvd.Sum: 2.0, hvd.Min: 1.0, hvd.Max: 1.0, hvd.Product: 4.0}

    def body() -> object:
        found = {}
        for op in expected:
            x = torch.tensor([2.0], dtype=dtype, requires_grad=True)
            hvd.allreduce(x, op=op).sum().backward()
            found[op] = x.grad.item() if x.grad.dtype == dtype else x.grad.dtype
        return found

    assert ranks.run(body) == [expected] * 2


def test_complex_numbers_have_gradients(ranks: RankPool) -> None:
    def body() -> object:
        gradients = []
        for op in (hvd.Average, hvd.Sum):
            x = torch.tensor([1.0 + 2.0j]).requires_grad_()
            hvd.allreduce(x, op=op).imag.sum().backward()
            gradients.append(x.grad.item())
        return gradients

    assert ranks.run(body) == [[1.0j, 2.0j]] * 2


def test_the_gradient_of_adasum_is_the_adasum_of_the_gradients_as_in_horovod(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        gradient = torch.zeros(2)
        gradient[hvd.rank()] = 3.0
        hvd.allreduce(x, op=hvd.Adasum).backward(gradient)
        return x.grad.tolist()

    assert ranks.run(body) == [[3.0, 3.0]] * 2


@pytest.mark.parametrize("form", ["allreduce", "reducescatter"])
def test_a_gradient_passes_through_compression(ranks: RankPool, form: str) -> None:
    def body() -> object:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        call(hvd, form, x, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
        return x.grad.dtype == torch.float32, x.grad.tolist()

    assert ranks.run(body) == [(True, [2.0, 2.0])] * 2


def test_an_input_may_be_no_leaf_and_a_gradient_expanded(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        hvd.allreduce((2 * x).t(), op=hvd.Sum).sum().backward()
        return x.grad.tolist()

    assert ranks.run(body) == [[[4.0, 4.0], [4.0, 4.0]]] * 2


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
def test_of_a_group_only_floats_have_gradients_and_ranks_may_differ_in_which_they_want(
    ranks: RankPool, kind: str
) -> None:
    def body() -> object:
        group = [torch.ones(2, requires_grad=hvd.rank() == 0), torch.ones(2, requires_grad=True), torch.tensor([3, 4])]
        first, second, whole = getattr(hvd, f"grouped_{kind}")(group)
        (first.sum() + second.sum()).backward()
        return group[0].grad is None, group[1].grad.tolist(), whole.requires_grad

    assert ranks.run(body) == [(False, [1.0, 1.0], False), (True, [1.0, 1.0], False)]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_results_of_a_group_are_differentiated_one_by_one(ranks: RankPool, op: int) -> None:
    """Ranks differ in which inputs want a gradient."""

    def body() -> object:
        group = [torch.tensor([2.0], requires_grad=hvd.rank() == 0), torch.tensor([3.0], requires_grad=True)]
        for index, result in enumerate(hvd.grouped_allreduce(group, op=op)):
            (result * (index + 1)).sum().backward()
        return group[1].grad.item(), group[0].grad.item() if hvd.rank() == 0 else None

    whole = torch.tensor([[2.0, 3.0]] * 2, requires_grad=True)
    (2 * REDUCTIONS[op](whole) * torch.tensor([1.0, 2.0])).sum().backward()
    first, second = whole.grad[0].tolist()
    assert ranks.run(body) == [(second, first), (second, None)]


def test_without_grad_mode_and_from_a_handle_results_have_no_gradient(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            quiet = [call(hvd, case.form, x, **case.options) for case in list_cases(2)]
        plain = [hvd.allreduce(x.detach()), hvd.synchronize(hvd.allreduce_async(x))]
        return any(each.requires_grad for each in (*quiet, *plain))

    assert ranks.run(body) == [False] * 2


def test_the_rows_that_an_alltoall_sends_get_their_gradients_back(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(4, requires_grad=True)
        received, counts = hvd.alltoall(x, [1, 3] if hvd.rank() == 0 else [4, 0])
        (received * (hvd.rank() + 1)).sum().backward()
        return x.grad.tolist(), counts.requires_grad

    assert ranks.run(body) == [([1.0, 2.0, 2.0, 2.0], False), ([1.0] * 4, False)]


def test_a_rank_that_gathers_no_rows_has_an_empty_gradient(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(2 * hvd.rank(), 3, requires_grad=True)
        hvd.allgather(x, "x").sum().backward()
        return list(x.grad.shape), x.grad.sum().item()

    assert ranks.run(body) == [([0, 3], 0.0), ([2, 3], 6.0)]


def test_a_scaled_reducescatter_leaves_the_given_gradient_alone(ranks: RankPool) -> None:
    """Horovod scales it in place."""

    def body() -> object:
        x, gradient = torch.ones(2, requires_grad=True), torch.ones(1)
        hvd.reducescatter(x, op=hvd.Sum, postscale_factor=5.0).backward(gradient)
        return x.grad.tolist(), gradient.tolist()

    assert ranks.run(body) == [([10.0, 10.0], [1.0])] * 2


def test_a_second_derivative_of_a_product_raises(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.ones(1, requires_grad=True)
        (gradient,) = torch.autograd.grad((hvd.allreduce(x, op=hvd.Product) ** 2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="op=Product can be differentiated once only"):
            gradient.sum().backward()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [2.0, 2.0]


def test_an_input_that_changes_before_backward_raises(ranks: RankPool) -> None:
    def body() -> None:
        y = torch.ones(1, requires_grad=True) * 1
        result = hvd.allreduce(y, op=hvd.Max)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()

    ranks.run(body)


def test_ranks_may_run_backward_in_different_orders(ranks: RankPool) -> None:
    """A gradient's operation is named after its forward call; Horovod's are counted, and would be mixed up."""

    def body() -> object:
        inputs = [torch.ones(1, requires_grad=True, device="cpu") for _ in range(3)]  # a GPU has one thread
        losses = [
            hvd.allreduce(x, op=hvd.Sum, name="third" if index == 2 else None).sum() * 10**index
            for index, x in enumerate(inputs)
        ]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        order = threads if hvd.rank() == 0 else threads[::-1]
        for thread in order:
            thread.start()
        for thread in order:
            thread.join(60)
        return [x.grad.item() for x in inputs]

    assert ranks.run(body) == [[2.0, 20.0, 200.0]] * 2
