"""Every collective against what one process computes from all ranks' inputs."""

from pathlib import Path

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives import Allgather, Allreduce, Broadcast, Combination, Reduction

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
UNREDUCIBLE = [torch.int16, torch.uint16, torch.float8_e4m3fn]
COMBINE = {
    hvd.Sum: lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    hvd.Average: lambda stacked: stacked.sum(0, dtype=stacked.dtype) / len(stacked),
    hvd.Min: lambda stacked: stacked.amin(0),
    hvd.Max: lambda stacked: stacked.amax(0),
    hvd.Product: lambda stacked: stacked.prod(0, dtype=stacked.dtype),
}


def make_input(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[1, 2, 3], [4, 2, rank + 1]]).to(dtype)


@pytest.mark.parametrize("op", COMBINE, ids=lambda op: op.name)
def test_an_allreduce_combines_floats_as_one_process_would(ranks: RankPool, op: Reduction) -> None:
    def body() -> object:
        return {dtype: hvd.allreduce(make_input(hvd.rank(), dtype), op=op) for dtype in FLOATS}

    results = ranks.run(body, size=3)
    for dtype in FLOATS:
        expected = COMBINE[op](torch.stack([make_input(rank, dtype) for rank in range(3)]))
        for result in results:
            torch.testing.assert_close(result[dtype], expected)
            assert torch.equal(result[dtype], results[0][dtype])


@pytest.mark.parametrize("op", [op for op in COMBINE if op != hvd.Average], ids=lambda op: op.name)
def test_an_allreduce_combines_integers_exactly(ranks: RankPool, op: Reduction) -> None:
    def body() -> object:
        return {dtype: hvd.allreduce(make_input(hvd.rank(), dtype), op=op) for dtype in INTEGERS}

    results = ranks.run(body, size=3)
    for dtype in INTEGERS:
        expected = COMBINE[op](torch.stack([make_input(rank, dtype) for rank in range(3)]))
        for result in results:
            assert result[dtype].dtype == dtype
            assert torch.equal(result[dtype], expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_average_of_integers_is_exact_and_truncated_toward_zero(ranks: RankPool, dtype: torch.dtype) -> None:
    greatest = torch.iinfo(dtype).max if dtype != torch.int64 else 2**61
    signed = dtype != torch.uint8

    def body() -> object:
        values = [greatest, hvd.rank(), 2 * hvd.rank() + 1] + ([-hvd.rank() - 1] if signed else [])
        return hvd.allreduce(torch.tensor(values, dtype=dtype))

    for result in ranks.run(body):
        assert result.dtype == dtype
        assert result.tolist() == [greatest, 0, 2] + ([-1] if signed else [])


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max], ids=lambda op: op.name)
def test_truth_values_have_a_minimum_and_a_maximum(ranks: RankPool, op: Reduction) -> None:
    def body() -> object:
        return hvd.allreduce(torch.tensor([False, True, hvd.rank() == 1]), op=op)

    assert ranks.run(body)[0].tolist() == [False, True, op == hvd.Max]


def test_complex_numbers_can_be_summed(ranks: RankPool) -> None:
    def body() -> object:
        return hvd.allreduce(torch.tensor([1 + 2j, hvd.rank() * 1j]).conj(), op=hvd.Sum)

    assert ranks.run(body)[1].tolist() == [2 - 4j, -1j]


@pytest.mark.parametrize("dtype", UNREDUCIBLE, ids=str)
def test_a_dtype_without_arithmetic_is_refused_before_anything_is_sent(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"allreduce 'x': tensors of {dtype} have no sum"):
        Allreduce(torch.zeros(2).to(dtype), Combination(Reduction.SUM), "x")


@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.AVERAGE, Reduction.PRODUCT])
def test_truth_values_are_not_added(reduction: Reduction) -> None:
    with pytest.raises(ValueError, match="convert them"):
        Allreduce(torch.tensor([True]), Combination(reduction))


def test_factors_apply_before_and_after(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([1.0, 2.0]) * (hvd.rank() + 1)
        half = torch.tensor([3, -3], dtype=torch.int32)
        return (
            hvd.allreduce(x, op=hvd.Max, prescale_factor=-1.0, postscale_factor=10.0),
            hvd.allreduce(half, op=hvd.Sum, prescale_factor=0.5),
            hvd.allreduce(x.half(), op=hvd.Average, postscale_factor=2.0),
        )

    for greatest, halves, doubled in ranks.run(body):
        assert greatest.tolist() == [-10.0, -20.0]
        assert halves.tolist() == [2, -2]
        assert doubled.tolist() == [3.0, 6.0]
        assert doubled.dtype == torch.float16


VIEWS = {
    "columns": lambda x: x[:, ::2],
    "rows": lambda x: x[::2],
    "block": lambda x: x[:, 1:3],
    "transposed": lambda x: x.t(),
    "expanded": lambda x: x[:1].expand(4, 6),
    "scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_allreduce_of_a_view_reads_only_the_view(ranks: RankPool, view: str) -> None:
    take = VIEWS[view]

    def body() -> object:
        base = torch.arange(24.0).reshape(4, 6) * (hvd.rank() + 1)
        before = base.clone()
        result = hvd.allreduce(take(base), op=hvd.Sum)
        return result, torch.equal(base, before)

    for result, is_untouched in ranks.run(body):
        assert torch.equal(result, take(torch.arange(24.0).reshape(4, 6) * 3))
        assert is_untouched


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_an_allreduce_in_place_changes_the_view_and_nothing_else(
    ranks: RankPool, view: str, dtype: torch.dtype
) -> None:
    take = VIEWS[view]

    def body() -> object:
        base = (torch.arange(24.0).reshape(4, 6) * (hvd.rank() + 1)).to(dtype)
        part = take(base)
        assert hvd.allreduce_(part, op=hvd.Average) is part
        return base

    for rank, base in enumerate(ranks.run(body)):
        expected = (torch.arange(24.0).reshape(4, 6) * (rank + 1)).to(dtype)
        take(expected).copy_(take((torch.arange(24.0).reshape(4, 6) * 1.5).to(dtype)))
        assert torch.equal(base, expected)


def test_layouts_may_differ_between_ranks(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.arange(6.0).reshape(2, 3)
        return hvd.allreduce(x if hvd.rank() == 0 else x.t().contiguous().t(), op=hvd.Sum)

    for result in ranks.run(body):
        assert torch.equal(result, torch.arange(6.0).reshape(2, 3) * 2)


EVERY_DTYPE = [*FLOATS, *INTEGERS, *UNREDUCIBLE, torch.bool, torch.complex64]


def describe(tensor: torch.Tensor) -> tuple[torch.dtype, list]:
    """Dtype and values; torch cannot pickle tensors of its newest dtypes."""
    return tensor.dtype, tensor.to(torch.complex64).tolist()


@pytest.mark.parametrize("rows", [(2, 1, 3), (0, 2, 0), (0, 0, 0), (1, 1, 1)], ids=str)
def test_an_allgather_joins_uneven_parts_in_rank_order(ranks: RankPool, rows: tuple[int, ...]) -> None:
    def make_part(rank: int) -> torch.Tensor:
        return (torch.arange(rows[rank] * 2 * 2).reshape(rows[rank], 2, 2) + 10 * rank) % 3

    def body() -> object:
        results = [hvd.allgather(make_part(hvd.rank()).to(dtype)) for dtype in EVERY_DTYPE]
        return [describe(result) for result in results], {result.shape for result in results}

    expected = torch.cat([make_part(rank) for rank in range(3)])
    for described, shapes in ranks.run(body, size=3):
        assert described == [describe(expected.to(dtype)) for dtype in EVERY_DTYPE]
        assert shapes == {expected.shape}


def test_an_allgather_takes_views_and_rows_without_elements(ranks: RankPool) -> None:
    def body() -> object:
        base = torch.arange(6).reshape(2, 3) + 10 * hvd.rank()
        return hvd.allgather(base.t()), hvd.allgather(torch.zeros(hvd.rank() + 1, 0))

    for gathered, empty in ranks.run(body):
        assert gathered.tolist() == [[0, 3], [1, 4], [2, 5], [10, 13], [11, 14], [12, 15]]
        assert empty.shape == (3, 0)


def test_a_tensor_without_dimensions_cannot_be_gathered() -> None:
    with pytest.raises(ValueError, match=r"reshape\(1\)"):
        Allgather(torch.tensor(1.0))


@pytest.mark.parametrize("root", [0, 2])
def test_a_broadcast_gives_all_ranks_the_roots_values(ranks: RankPool, root: int) -> None:
    def make_own(rank: int) -> list[torch.Tensor]:
        return [torch.full((2, 2), rank).to(dtype) for dtype in EVERY_DTYPE]

    def body() -> object:
        own = make_own(hvd.rank())
        new = [hvd.broadcast(tensor, root) for tensor in own]
        return [describe(tensor) for tensor in own], [describe(tensor) for tensor in new]

    for rank, (own, new) in enumerate(ranks.run(body, size=3)):
        assert own == [describe(tensor) for tensor in make_own(rank)]
        assert new == [describe(tensor) for tensor in make_own(root)]


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "expanded"])
def test_a_broadcast_in_place_changes_the_view_and_nothing_else(ranks: RankPool, view: str) -> None:
    take = VIEWS[view]

    def body() -> object:
        base = torch.full((4, 6), float(hvd.rank()))
        part = take(base)
        assert hvd.broadcast_(part, 1) is part
        return base

    for rank, base in enumerate(ranks.run(body)):
        expected = torch.full((4, 6), float(rank))
        take(expected).fill_(1.0)
        assert torch.equal(base, expected)


@pytest.mark.parametrize("root", [-1, 2])
def test_a_root_that_is_no_rank_is_refused(root: int) -> None:
    with pytest.raises(ValueError, match=f"received invalid root rank {root}; ranks are 0 to 1"):
        Broadcast(torch.zeros(1), root, rank=0, size=2)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, 2).to_sparse(), torch.zeros(2, device="meta")], ids=["sparse", "not on the CPU"]
)
def test_tensors_without_ordinary_memory_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="are not supported"):
        Allreduce(tensor, Combination())
    with pytest.raises(ValueError, match="are not supported"):
        Allgather(tensor)
    with pytest.raises(ValueError, match="are not supported"):
        Broadcast(tensor, 0, rank=0, size=1)


def test_a_refused_call_leaves_the_group_usable(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="no sum"):
            hvd.allreduce(torch.zeros(2, dtype=torch.int16), op=hvd.Sum)
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [2.0, 2.0]


def test_nobody_passes_a_barrier_before_all_have_come(ranks: RankPool, tmp_path: Path) -> None:
    mark = tmp_path / "rank-1-has-come"

    def body() -> object:
        if hvd.rank() == 1:
            mark.touch()
        hvd.barrier()
        return mark.exists()

    assert ranks.run(body) == [True, True]


def test_a_world_of_one_runs_every_collective(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.tensor([2, 4])
        hvd.barrier()
        in_place = x.clone()
        hvd.allreduce_(in_place, op=hvd.Sum)
        same = [hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), in_place]
        assert not any(result is x or result.data_ptr() == x.data_ptr() for result in same)
        return same, hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.25)

    same, scaled = ranks.run(body, size=1)[0]
    assert all(result.tolist() == [2, 4] for result in same)
    assert scaled.tolist() == [1, 2]
