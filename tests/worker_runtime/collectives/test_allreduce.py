"""The allreduce's corner cases, inside the request and through gloo.

That each dtype, operation, layout and form gives what one process computes is shown by random programs: see
test_random_collectives.py.
"""

from collections.abc import Callable

import pytest
import torch

from tests.worker_runtime.collectives.ways import compute, in_three_ways, in_two_ways, run
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import AVERAGE, SUM, Combination
from worker_runtime.collectives.dtypes import FLOATS, INTEGERS
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction

ALONE = Members(0, (0,), 0)
PAIR = Members(0, (0, 1), 1)
MAX, PRODUCT = Reduction.MAX, Combination(Reduction.PRODUCT)


def reduce(
    engine: ThreadEngine, tensor: torch.Tensor, how: Combination = SUM, into: torch.Tensor | None = None
) -> torch.Tensor:
    (result,) = engine.run(Allreduce([tensor], how, engine.all, "allreduce.x", None if into is None else [into]))
    return result


@in_two_ways
def test_a_minimum_or_maximum_is_nan_where_any_rank_has_nan(way: str) -> None:
    """Gloo alone would keep some of them; which ones depends on who compares what with what."""

    def make_values(rank: int, holders: list[int], dtype: torch.dtype) -> torch.Tensor:
        values = torch.tensor([1.0, -2.0, torch.inf, -torch.inf, 0.0, -0.0] * 50, dtype=dtype).roll(rank)
        if rank in holders:
            values[rank::7] = torch.nan
        return values

    cases = [
        (reduction, holders, dtype, in_place)
        for reduction in (Reduction.MIN, Reduction.MAX)
        for holders in ([], [0], [1], [2], [0, 2])
        for dtype in sorted(FLOATS, key=str)
        for in_place in (False, True)
    ]

    def body(engine: ThreadEngine) -> object:
        results = []
        for reduction, holders, dtype, in_place in cases:
            values, whole = make_values(engine.rank, holders, dtype), torch.arange(300)
            into = [values, whole] if in_place else None
            operation = Allreduce([values, whole], Combination(reduction), engine.all, "allreduce.x", into)
            result, numbers = engine.run(operation)
            assert torch.equal(numbers, torch.arange(300))
            assert (result is values) == in_place
            results.append(result)
        return results

    for results in run(body, way=way, size=3):
        for (reduction, holders, dtype, _), result in zip(cases, results, strict=True):
            expected = compute(reduction, [make_values(rank, holders, dtype) for rank in range(3)])
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def fill(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((2,), torch.iinfo(dtype).max, dtype=dtype)


CORNERS: dict[str, tuple[Callable[[int], torch.Tensor], Combination, list]] = {  # what a rank gives, how, what all get
    **{f"a sum of {dtype}": (lambda _, of=dtype: fill(of), SUM, [-2] * 2) for dtype in INTEGERS - {torch.uint8}},
    **{f"a product of {dtype}": (lambda _, of=dtype: fill(of), PRODUCT, [1] * 2) for dtype in INTEGERS},
    **{
        f"an average of {dtype}": (lambda _, of=dtype: fill(of), AVERAGE, fill(dtype).tolist())
        for dtype in INTEGERS - {torch.int64}
    },
    "a sum of bytes": (lambda _: fill(torch.uint8), SUM, [254] * 2),
    "a large average": (lambda _: torch.tensor([2**61]), AVERAGE, [2**61]),
    "truncation toward zero": (lambda rank: torch.tensor([rank, 2 * rank + 1, -rank - 1]), AVERAGE, [0, 2, -1]),
    "complex numbers, lazily conjugated": (lambda rank: torch.tensor([1 + 2j, rank * 1j]).conj(), SUM, [2 - 4j, -1j]),
    "numbers, lazily negated": (lambda rank: torch.tensor([1 + 2j, rank * 1j]).conj().imag, SUM, [-4.0, -1.0]),
    "factors of a maximum": (lambda r: torch.tensor([1.0, 2.0]) * (r + 1), Combination(MAX, -1.0, 10.0), [-10, -20]),
    "half of integers": (lambda _: torch.tensor([3, -3]), Combination(Reduction.SUM, 0.5), [2, -2]),
    "an average, doubled": (lambda r: torch.tensor([r + 1.0]).half(), Combination(postscale=2.0), [3.0]),
    "an average of integers, halved": (lambda _: torch.tensor([3, -3]), Combination(postscale=0.5), [1, -1]),
    "3 * 1/2 * 2, truncated at the end": (lambda rank: torch.tensor([rank + 1]), Combination(postscale=2.0), [3]),
    "complex numbers and factors": (lambda _: torch.tensor([1j]), Combination(Reduction.AVERAGE, 2.0, 3.0), [6j]),
}


@in_two_ways
def test_integers_wrap_around_averages_are_truncated_and_factors_apply(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        return {name: reduce(engine, make(engine.rank), how) for name, (make, how, _) in CORNERS.items()}

    for results in run(body, way=way):
        assert {name: result.tolist() for name, result in results.items()} == {
            name: expected for name, (_, _, expected) in CORNERS.items()
        }
        assert all(result.dtype == CORNERS[name][0](0).dtype for name, result in results.items())


@in_two_ways
def test_an_allreduce_may_put_its_result_into_a_part_of_its_input(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        base, lazy = torch.arange(6.0), torch.tensor([1 + 2j]).conj()
        reduce(engine, base[:4], SUM, into=base[2:])
        reduce(engine, base.view(2, 3).t(), SUM, into=base.view(3, 2))
        reduce(engine, lazy, SUM, into=lazy)
        return base.tolist(), lazy.is_conj(), lazy.tolist()

    # 0 1 2 3 4 5 -> 0 1 0 2 4 6 -> transposed and doubled
    assert run(body, way=way)[0] == ([0, 4, 2, 8, 0, 12], True, [2 - 4j])


@in_two_ways
def test_the_input_is_left_alone_and_the_result_shares_no_memory(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        x = torch.ones(3, requires_grad=True)
        other = torch.zeros(3)
        result = reduce(engine, x, SUM)
        assert reduce(engine, x, SUM, into=other) is other
        assert not result.requires_grad
        return x.tolist(), result.tolist(), other.tolist(), result.data_ptr() == x.data_ptr()

    assert run(body, way=way)[0] == ([1.0] * 3, [2.0] * 3, [2.0] * 3, False)


@in_two_ways
def test_layouts_may_differ_between_ranks(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        x = torch.arange(6.0).reshape(2, 3)
        image = torch.arange(16.0).reshape(1, 4, 2, 2)
        if engine.rank == 1:
            x, image = x.t().contiguous().t(), image.contiguous(memory_format=torch.channels_last)
        reduce(engine, image, SUM, into=image)
        return reduce(engine, x), image

    for result, image in run(body, way=way):
        assert torch.equal(result, torch.arange(6.0).reshape(2, 3) * 2)
        assert torch.equal(image, torch.arange(16.0).reshape(1, 4, 2, 2) * 2)


@in_two_ways
def test_tensors_of_inference_mode_are_reduced(way: str) -> None:
    def body(engine: ThreadEngine) -> object:
        with torch.inference_mode():
            x = torch.ones(2)
            reduce(engine, x, Combination(Reduction.SUM, 2.0), into=x)
        return x.tolist(), reduce(engine, x, AVERAGE).tolist()

    assert run(body, way=way)[0] == ([4.0, 4.0], [4.0, 4.0])


def test_a_scaled_half_is_rounded_once_where_it_is_small_and_before_each_sum_where_it_is_large() -> None:
    """1e-6 is no number of float16; what float16 has next to it is 1e-6 * 1.0137."""

    def body(engine: ThreadEngine) -> object:
        how = Combination(Reduction.SUM, 1e-6, 1e6)
        return [reduce(engine, torch.ones(count, dtype=torch.float16), how)[0].item() for count in (4, 100_000)]

    assert run(body)[0] == [2.0, 2.02734375]


@in_three_ways
def test_a_group_of_tensors_is_one_operation(way: str) -> None:
    def make_tensors(rank: int) -> list[torch.Tensor]:
        return [
            torch.tensor(float(rank)),
            torch.arange(12.0).view(3, 4),
            torch.zeros(0, 3),
            torch.tensor([1, 3]),
            torch.arange(12.0).view(3, 4)[:, ::2],
            torch.tensor([1.0, 2.0], dtype=torch.float16),
            torch.arange(4, dtype=torch.int32) + rank,
        ]

    def body(engine: ThreadEngine) -> object:
        tensors = make_tensors(engine.rank)
        new = engine.run(Allreduce(tensors, AVERAGE, engine.all, "grouped_allreduce.x"))
        assert all(result.is_contiguous() and result is not tensor for result, tensor in zip(new, tensors, strict=True))
        own = {result.untyped_storage().data_ptr() for result in new if result.numel()}
        assert len(own) == len(tensors) - 1  # none holds the memory of the others
        same = engine.run(Allreduce(tensors, AVERAGE, engine.all, "grouped_allreduce.x", tensors))
        assert all(result is tensor for result, tensor in zip(same, tensors, strict=True))
        return [[(result.dtype, result.tolist()) for result in results] for results in (new, same)]

    base = torch.arange(12.0).view(3, 4)
    values = [0.5, base.tolist(), [], [1, 3], base[:, ::2].tolist(), [1.0, 2.0], [0, 1, 2, 3]]
    expected = [(tensor.dtype, value) for tensor, value in zip(make_tensors(0), values, strict=True)]
    assert run(body, way=way) == [[expected] * 2] * 2


def test_a_group_of_one_dtype_travels_inside_the_request_as_a_whole() -> None:
    def body(engine: ThreadEngine) -> object:
        tensors = [torch.full((count,), float(engine.rank + 1)) for count in (3, 0, 5)]
        operation = Allreduce(tensors, Combination(Reduction.PRODUCT, 2.0), engine.all, "grouped_allreduce.x")
        assert (operation.request.signature.payload_dtype, len(operation.payload)) == ("float32", 8 * 4)
        return [result.tolist() for result in engine.run(operation)]

    assert run(body)[1] == [[8.0] * 3, [], [8.0] * 5]


def test_large_tensors_travel_through_gloo_and_in_place_without_a_copy() -> None:
    def body(engine: ThreadEngine) -> object:
        x = torch.ones(100_000)
        operation = Allreduce([x], SUM, engine.all, "allreduce.x", [x])
        assert not operation.request.signature.payload_dtype
        engine.run(operation)
        (buffer,) = operation._buffers
        return buffer.data_ptr() == x.data_ptr(), x.unique().tolist()

    assert run(body) == [(True, [2.0])] * 2


def test_an_operation_can_be_started_again() -> None:
    def body(engine: ThreadEngine) -> object:
        operation = Allreduce([torch.ones(2)], Combination(Reduction.SUM, 2.0), engine.all, "allreduce.x")
        engine.await_response(engine.submit(operation))
        return engine.run(operation)[0].tolist()

    assert run(body, way="gloo") == [[4.0, 4.0]] * 2


def ask(*tensors: torch.Tensor, how: Combination = SUM, into: list[torch.Tensor] | None = None) -> Allreduce:
    return Allreduce(tensors, how, PAIR, "allreduce.x", into)


def test_arguments_that_all_ranks_must_agree_on_stand_in_the_request() -> None:
    x = torch.ones(2, 3, dtype=torch.int16)
    _, _, signature, factors = ask(x, how=Combination(Reduction.MAX, 2, 3)).request
    assert signature == ask(x, how=Combination(Reduction.MAX)).request.signature, "factors may change with each step"
    assert (signature.dtypes, signature.shapes) == (("int16",), ((2, 3),))
    assert (signature.reduction, *factors) == (Reduction.MAX, 2.0, 3.0)
    assert signature.device == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_cuda_the_current_stream_waits_for_the_result() -> None:
    x = torch.full((1 << 20,), 3.0, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        x = x * 2
        operation = Allreduce([x], Combination(Reduction.AVERAGE, 0.5), ALONE, "allreduce.x")
        assert operation.request.signature.device == "cuda"
        (result,) = operation.finish(None, memoryview(b""))
        assert result.unique().tolist() == [3.0]
