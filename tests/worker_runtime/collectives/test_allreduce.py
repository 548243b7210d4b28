"""The allreduce against what one process computes from all ranks' inputs, inside the question and through gloo.

Long because each way in which a tensor can lie in memory is tried on both ways.
"""

import pytest
import torch

from tests.worker_runtime.collectives.worlds import World, Worlds
from worker_runtime.collectives import AVERAGE, SUM, Allreduce, Combination, Reduction, lots
from worker_runtime.operation import Members

ALONE = Members(0, (0,), 0)
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMBINE = {
    Reduction.SUM: lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    Reduction.AVERAGE: lambda stacked: stacked.sum(0, dtype=stacked.dtype) / len(stacked),
    Reduction.MIN: lambda stacked: stacked.amin(0),
    Reduction.MAX: lambda stacked: stacked.amax(0),
    Reduction.PRODUCT: lambda stacked: stacked.prod(0, dtype=stacked.dtype),
}

through = pytest.mark.parametrize("way", ["question", "gloo"])


def choose(world: World, way: str) -> None:
    if way == "gloo":
        world.forbid_payload()


def make_input(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[1, 2, 3], [4, 2, rank + 1]]).to(dtype)


def reduce(
    world: World, tensor: torch.Tensor, how: Combination = SUM, into: torch.Tensor | None = None
) -> torch.Tensor:
    (result,) = world.run(Allreduce([tensor], how, world.all, "allreduce.x", None if into is None else [into]))
    return result


@through
@pytest.mark.parametrize("reduction", COMBINE, ids=lambda reduction: reduction.name)
def test_an_allreduce_combines_floats_as_one_process_would(worlds: Worlds, reduction: Reduction, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        return {dtype: reduce(world, make_input(world.rank, dtype), Combination(reduction)) for dtype in FLOATS}

    results = worlds.run(body, size=3)
    for dtype in FLOATS:
        expected = COMBINE[reduction](torch.stack([make_input(rank, dtype) for rank in range(3)]))
        for result in results:
            torch.testing.assert_close(result[dtype], expected)
            assert torch.equal(result[dtype], results[0][dtype])


@through
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("reduction", [Reduction.MIN, Reduction.MAX], ids=lambda reduction: reduction.name)
def test_an_extreme_is_nan_where_any_rank_has_one(
    worlds: Worlds, reduction: Reduction, way: str, *, in_place: bool
) -> None:
    """Gloo alone would keep some of them; which ones depends on who compares what with what."""

    def make_values(rank: int, holders: list[int], dtype: torch.dtype) -> torch.Tensor:
        values = torch.tensor([1.0, -2.0, torch.inf, -torch.inf, 0.0, -0.0] * 50, dtype=dtype).roll(rank)
        if rank in holders:
            values[rank::7] = torch.nan
        return values

    cases = [(holders, dtype) for dtype in FLOATS for holders in ([], [0], [1], [2], [0, 2])]

    def body(world: World) -> object:
        choose(world, way)
        results = []
        for holders, dtype in cases:
            values = make_values(world.rank, holders, dtype)
            whole = torch.arange(300)
            into = [values, whole] if in_place else None
            operation = Allreduce([values, whole], Combination(reduction), world.all, "allreduce.x", into)
            result, numbers = world.run(operation)
            assert torch.equal(numbers, torch.arange(300))
            assert (result is values) == in_place
            results.append(result)
        return results

    results = worlds.run(body, size=3)
    for index, (holders, dtype) in enumerate(cases):
        expected = COMBINE[reduction](torch.stack([make_values(rank, holders, dtype) for rank in range(3)]))
        for result in results:
            torch.testing.assert_close(result[index], expected, rtol=0, atol=0, equal_nan=True)


@through
@pytest.mark.parametrize(
    "reduction", [reduction for reduction in COMBINE if reduction is not Reduction.AVERAGE], ids=lambda op: op.name
)
def test_an_allreduce_combines_integers_exactly(worlds: Worlds, reduction: Reduction, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        return {dtype: reduce(world, make_input(world.rank, dtype), Combination(reduction)) for dtype in INTEGERS}

    for result in worlds.run(body, size=3):
        for dtype in INTEGERS:
            assert result[dtype].dtype == dtype
            assert torch.equal(
                result[dtype], COMBINE[reduction](torch.stack([make_input(rank, dtype) for rank in range(3)]))
            )


@through
def test_sums_and_products_of_integers_wrap_around(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        most = [torch.full((2,), torch.iinfo(dtype).max, dtype=dtype) for dtype in INTEGERS]
        return [
            [reduce(world, tensor, Combination(op)).tolist() for tensor in most]
            for op in (Reduction.SUM, Reduction.PRODUCT)
        ]

    assert worlds.run(body)[0] == [[[-2] * 2, [254] * 2, [-2] * 2, [-2] * 2, [-2] * 2], [[1] * 2] * 5]


@through
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_average_of_integers_is_exact_and_truncated_toward_zero(
    worlds: Worlds, dtype: torch.dtype, way: str
) -> None:
    greatest = torch.iinfo(dtype).max if dtype != torch.int64 else 2**61
    signed = dtype != torch.uint8

    def body(world: World) -> object:
        choose(world, way)
        values = [greatest, world.rank, 2 * world.rank + 1] + ([-world.rank - 1] if signed else [])
        return reduce(world, torch.tensor(values, dtype=dtype), AVERAGE)

    for result in worlds.run(body):
        assert result.dtype == dtype
        assert result.tolist() == [greatest, 0, 2] + ([-1] if signed else [])


@through
def test_truth_values_have_a_minimum_and_a_maximum(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        values = torch.tensor([False, True, world.rank == 1])
        return [reduce(world, values, Combination(op)).tolist() for op in (Reduction.MIN, Reduction.MAX)]

    assert worlds.run(body)[0] == [[False, True, False], [False, True, True]]


@through
def test_complex_numbers_can_be_summed_lazily_conjugated_ones_too(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        x = torch.tensor([1 + 2j, world.rank * 1j])
        lazy = x.clone().conj()
        reduce(world, lazy, SUM, into=lazy)
        assert lazy.is_conj()
        return reduce(world, x.conj()).tolist(), reduce(world, x.conj().imag).tolist(), lazy.tolist()

    expected = [2 - 4j, -1j]
    assert worlds.run(body)[1] == (expected, [-4.0, -1.0], expected)


@through
def test_factors_apply_before_and_after(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        x = torch.tensor([1.0, 2.0]) * (world.rank + 1)
        half = torch.tensor([3, -3], dtype=torch.int32)
        return [
            reduce(world, x, Combination(Reduction.MAX, -1.0, 10.0)).tolist(),
            reduce(world, half, Combination(Reduction.SUM, 0.5)).tolist(),
            reduce(world, x.half(), Combination(Reduction.AVERAGE, 1.0, 2.0)).tolist(),
            reduce(world, half, Combination(Reduction.AVERAGE, 1.0, 0.5)).tolist(),
            reduce(world, torch.tensor([world.rank + 1]), Combination(Reduction.AVERAGE, 1.0, 2.0)).tolist(),
            reduce(world, torch.tensor([1j]), Combination(Reduction.AVERAGE, 2.0, 3.0)).tolist(),
        ]

    for results in worlds.run(body):
        # 3 * 1/2 * 2 is 3: truncated once, at the end
        assert results == [[-10.0, -20.0], [2, -2], [3.0, 6.0], [1, -1], [3], [6j]]


def test_a_sum_of_halves_inside_the_question_is_rounded_once(worlds: Worlds) -> None:
    def body(world: World) -> object:
        return reduce(world, torch.tensor([40000.0, 1.0], dtype=torch.float16), AVERAGE).tolist()

    assert worlds.run(body) == [[40000.0, 1.0]] * 2  # the sum has no place in float16


VIEWS = {
    "columns": lambda x: x[:, ::2],
    "rows": lambda x: x[::2],
    "block": lambda x: x[:, 1:3],
    "transposed": lambda x: x.t(),
    "scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "all": lambda x: x,
}


@through
@pytest.mark.parametrize("prescale", [1.0, 2.0])
def test_an_allreduce_of_a_view_reads_only_the_view(worlds: Worlds, way: str, prescale: float) -> None:
    takes = [*VIEWS.values(), lambda x: x[:1].expand(4, 6)]

    def body(world: World) -> object:
        choose(world, way)
        for take in takes:
            base = torch.arange(24.0).reshape(4, 6) * (world.rank + 1)
            before = base.clone()
            result = reduce(world, take(base), Combination(Reduction.SUM, prescale))
            assert torch.equal(result, take(torch.arange(24.0).reshape(4, 6) * 3 * prescale))
            assert torch.equal(base, before)
            result += 1
            assert torch.equal(base, before)

    worlds.run(body)


@through
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
def test_an_allreduce_in_place_changes_the_view_and_nothing_else(worlds: Worlds, dtype: torch.dtype, way: str) -> None:
    takes = VIEWS.values()

    def body(world: World) -> object:
        choose(world, way)
        for take in takes:
            base = (torch.arange(24.0).reshape(4, 6) * (world.rank + 1)).to(dtype)
            part = take(base)
            assert reduce(world, part, AVERAGE, into=part) is part
            expected = (torch.arange(24.0).reshape(4, 6) * (world.rank + 1)).to(dtype)
            take(expected).copy_(take((torch.arange(24.0).reshape(4, 6) * 1.5).to(dtype)))
            assert torch.equal(base, expected)

    worlds.run(body)


@through
def test_the_result_may_go_into_a_part_of_the_input(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        base = torch.arange(6.0)
        reduce(world, base[:4], SUM, into=base[2:])
        reduce(world, base.view(2, 3).t(), SUM, into=base.view(3, 2))
        return base.tolist()

    # 0 1 2 3 4 5 -> 0 1 0 2 4 6 -> transposed and doubled
    assert worlds.run(body)[0] == [0, 4, 2, 8, 0, 12]


@through
def test_the_input_is_left_alone_and_the_result_shares_no_memory(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        x = torch.ones(3, requires_grad=True)
        other = torch.zeros(3)
        result = reduce(world, x, SUM)
        assert reduce(world, x, SUM, into=other) is other
        assert not result.requires_grad
        return x.tolist(), result.tolist(), other.tolist(), result.data_ptr() == x.data_ptr()

    assert worlds.run(body)[0] == ([1.0] * 3, [2.0] * 3, [2.0] * 3, False)


@through
def test_layouts_may_differ_between_ranks(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        x = torch.arange(6.0).reshape(2, 3)
        image = torch.arange(16.0).reshape(1, 4, 2, 2)
        if world.rank == 1:
            x, image = x.t().contiguous().t(), image.contiguous(memory_format=torch.channels_last)
        reduce(world, image, SUM, into=image)
        return reduce(world, x), image

    for result, image in worlds.run(body):
        assert torch.equal(result, torch.arange(6.0).reshape(2, 3) * 2)
        assert torch.equal(image, torch.arange(16.0).reshape(1, 4, 2, 2) * 2)


@through
def test_tensors_of_inference_mode_are_reduced(worlds: Worlds, way: str) -> None:
    def body(world: World) -> object:
        choose(world, way)
        with torch.inference_mode():
            x = torch.ones(2)
            finish = world.begin(Allreduce([x], Combination(Reduction.SUM, 2.0), world.all, "allreduce.x", [x]))
            finish()
        return x.tolist(), reduce(world, x, AVERAGE).tolist()

    assert worlds.run(body)[0] == ([4.0, 4.0], [4.0, 4.0])


@pytest.mark.parametrize("way", ["question", "gloo", "large ones apart"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_group_of_tensors_is_one_operation(worlds: Worlds, way: str, *, in_place: bool) -> None:
    def body(world: World) -> object:
        if way != "question":
            world.forbid_payload()
        if way == "large ones apart":
            lots.LARGE_BYTES = 16
        base = torch.arange(12.0).view(3, 4)
        tensors = [
            torch.tensor(float(world.rank)),
            base.clone(),
            torch.zeros(0, 3),
            torch.tensor([1, 3]),
            torch.arange(12.0).view(3, 4)[:, ::2],
            torch.tensor([1.0, 2.0], dtype=torch.float16),
            torch.arange(4, dtype=torch.int32) + world.rank,
        ]
        results = world.run(
            Allreduce(tensors, AVERAGE, world.all, "grouped_allreduce.x", tensors if in_place else None)
        )
        assert all((result is tensor) == in_place for result, tensor in zip(results, tensors, strict=True))
        assert [result.dtype for result in results] == [tensor.dtype for tensor in tensors]
        assert all(result.is_contiguous() or in_place for result in results)
        if not in_place:
            own = {result.untyped_storage().data_ptr() for result in results if result.numel()}
            assert len(own) == len(tensors) - 1  # none holds the memory of the others
        return [result.tolist() for result in results]

    base = torch.arange(12.0).view(3, 4)
    expected = [0.5, base.tolist(), [], [1, 3], base[:, ::2].tolist(), [1.0, 2.0], [0, 1, 2, 3]]
    assert worlds.run(body) == [expected, expected]


def test_a_group_of_one_dtype_travels_inside_the_question_as_a_whole(worlds: Worlds) -> None:
    def body(world: World) -> object:
        tensors = [torch.full((count,), float(world.rank + 1)) for count in (3, 0, 5)]
        operation = Allreduce(tensors, Combination(Reduction.PRODUCT, 2.0), world.all, "grouped_allreduce.x")
        assert (operation.question.signature.payload_dtype, len(operation.payload)) == ("float32", 8 * 4)
        return [result.tolist() for result in world.run(operation)]

    assert worlds.run(body)[1] == [[8.0] * 3, [], [8.0] * 5]


def test_large_tensors_travel_through_gloo_and_in_place_without_a_copy(worlds: Worlds) -> None:
    def body(world: World) -> object:
        x = torch.ones(100_000)
        operation = Allreduce([x], SUM, world.all, "allreduce.x", [x])
        assert not operation.question.signature.payload_dtype
        world.run(operation)
        (buffer,) = operation._buffers
        return buffer.data_ptr() == x.data_ptr(), x.unique().tolist()

    assert worlds.run(body) == [(True, [2.0])] * 2


def test_operations_that_overlap_do_not_mix(worlds: Worlds) -> None:
    def body(world: World) -> object:
        world.forbid_payload()
        tensors = [torch.full((1000,), float(index + world.rank)) for index in range(8)]
        finishes = [
            world.begin(Allreduce([tensor], SUM, world.all, f"allreduce.{index}", [tensor]))
            for index, tensor in enumerate(tensors)
        ]
        return [finish()[0].unique().tolist() for finish in reversed(finishes)]

    assert worlds.run(body, size=3)[2] == [[3.0 * index + 3] for index in reversed(range(8))]


def test_an_operation_can_be_started_again(worlds: Worlds) -> None:
    def body(world: World) -> object:
        world.forbid_payload()
        operation = Allreduce([torch.ones(2)], Combination(Reduction.SUM, 2.0), world.all, "allreduce.x")
        world.begin(operation)
        return world.run(operation)[0].tolist()

    assert worlds.run(body) == [[4.0, 4.0]] * 2


def test_a_process_set_divides_by_its_own_size(worlds: Worlds) -> None:
    def body(world: World) -> object:
        if world.rank == 1:
            return None
        members = world.form_set(7, (0, 2))
        x = torch.full((50_000,), float(world.rank + 1))
        (result,) = world.run(Allreduce([x], AVERAGE, members, "allreduce.x"))
        return result.unique().tolist()

    assert worlds.run(body, size=3) == [[2.0], None, [2.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.float16], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_alone_it_copies_and_scales(dtype: torch.dtype, *, in_place: bool) -> None:
    x = torch.tensor([2, 4]).to(dtype)
    operation = Allreduce(
        [x], Combination(Reduction.AVERAGE, 2.0, 0.25), ALONE, "allreduce.x", [x] if in_place else None
    )
    assert operation.payload == b""
    (result,) = operation.finish(None, memoryview(b""))
    assert result.tolist() == [1, 2]
    assert x.tolist() == ([1, 2] if in_place else [2, 4])


PAIR = Members(0, (0, 1), 1)


def ask(*tensors: torch.Tensor, how: Combination = SUM, into: list[torch.Tensor] | None = None) -> Allreduce:
    return Allreduce(tensors, how, PAIR, "allreduce.x", into)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2], ids=str)
def test_a_dtype_without_arithmetic_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"allreduce 'x': tensors of {dtype} have no sum; convert them"):
        ask(torch.empty(2, dtype=dtype))


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVERAGE, Reduction.PRODUCT])
def test_truth_values_are_not_added(reduction: Reduction) -> None:
    with pytest.raises(ValueError, match="convert them"):
        ask(torch.tensor([True]), how=Combination(reduction))


def test_truth_values_are_not_scaled() -> None:
    with pytest.raises(ValueError, match="cannot be scaled"):
        ask(torch.tensor([True]), how=Combination(Reduction.MAX, 2.0))


def test_adasum_is_an_operation_of_its_own() -> None:
    with pytest.raises(ValueError, match="of its own"):
        ask(torch.ones(1), how=Combination(Reduction.ADASUM))


def test_a_result_with_shared_memory_is_refused() -> None:
    x = torch.ones(1).expand(3)
    with pytest.raises(ValueError, match="clone it"):
        ask(x, into=[x])


def test_what_all_ranks_must_agree_on_stands_in_the_signature() -> None:
    signature = ask(torch.ones(2, 3, dtype=torch.int16), how=Combination(Reduction.MAX, 2.0, 3.0)).question.signature
    assert (signature.dtypes, signature.shapes) == (("int16",), ((2, 3),))
    assert (signature.reduction, signature.prescale, signature.postscale) == (Reduction.MAX, 2.0, 3.0)
    assert signature.device == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_cuda_the_current_stream_waits_for_the_result() -> None:
    x = torch.full((1 << 20,), 3.0, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        x = x * 2
        operation = Allreduce([x], Combination(Reduction.AVERAGE, 0.5), ALONE, "allreduce.x")
        assert operation.question.signature.device == "cuda"
        (result,) = operation.finish(None, memoryview(b""))
        assert result.unique().tolist() == [3.0]
