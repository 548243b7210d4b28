"""The reducescatter against what one process computes from all ranks' inputs."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import compute, run
from tests.worker_runtime.threads import ELEMENTWISE, ThreadEngine
from worker_runtime.collectives.combination import AVERAGE, Combination
from worker_runtime.collectives.dtypes import FLOATS, INTEGERS
from worker_runtime.collectives.reducescatter import Reducescatter, divide_rows
from worker_runtime.coordination.ordering.requests import Reduction

DTYPES = sorted(FLOATS | INTEGERS, key=str)


def make_input(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([[1, 2], [3, 4], [2, rank + 1], [rank, 2], [1, rank]]).to(dtype)


@pytest.mark.parametrize("reduction", ELEMENTWISE, ids=lambda reduction: reduction.name)
def test_each_rank_gets_its_part_of_the_rows_the_first_ones_one_more(reduction: Reduction) -> None:
    def body(engine: ThreadEngine) -> object:
        tensors = [make_input(engine.rank, dtype) for dtype in DTYPES]
        how = Combination(reduction)
        single = [engine.run(Reducescatter([tensor], how, engine.all, "reducescatter.x"))[0] for tensor in tensors]
        grouped = engine.run(Reducescatter(tensors, how, engine.all, "grouped_reducescatter.x"))
        return single, grouped

    for rank, results in enumerate(run(body, size=3)):
        for group in results:
            for dtype, result in zip(DTYPES, group, strict=True):
                expected = compute(reduction, [make_input(other, dtype) for other in range(3)])
                assert result.dtype == dtype
                torch.testing.assert_close(result, expected[[(0, 2), (2, 4), (4, 5)][rank][0] :][: (2, 2, 1)[rank]])


def test_complex_and_truth_values_are_reduced() -> None:
    def body(engine: ThreadEngine) -> object:
        (sums,) = engine.run(Reducescatter([torch.tensor([1j, engine.rank]).conj()], AVERAGE, engine.all, "r.x"))
        true = torch.tensor([engine.rank == 0, False])
        (most,) = engine.run(Reducescatter([true], Combination(Reduction.MAX), engine.all, "r.x"))
        return sums.tolist(), most.tolist()

    assert run(body) == [([-1j], [True]), ([0.5 + 0j], [False])]


def test_factors_apply_and_the_input_is_left_alone() -> None:
    def body(engine: ThreadEngine) -> object:
        x, integers = torch.ones(2, 2), torch.tensor([3, -3])
        (result,) = engine.run(Reducescatter([x.t()], Combination(Reduction.AVERAGE, 2.0, 3.0), engine.all, "r.x"))
        (halves,) = engine.run(Reducescatter([integers], Combination(Reduction.SUM, 0.5), engine.all, "r.x"))
        (one,) = engine.run(Reducescatter([integers], Combination(Reduction.AVERAGE, 1.0, 0.5), engine.all, "r.x"))
        assert x.unique().tolist() == [1.0]
        return result.tolist(), halves.tolist(), one.tolist()

    assert run(body) == [([[6.0, 6.0]], [2], [1]), ([[6.0, 6.0]], [-2], [-1])]


@pytest.mark.parametrize("rows", range(12))
def test_rows_are_divided_as_evenly_as_can_be(rows: int) -> None:
    for size in range(1, 6):
        parts = divide_rows(rows, size)
        assert (len(parts), sum(parts)) == (size, rows)
        assert parts[0] - parts[-1] <= 1
        assert list(parts) == sorted(parts, reverse=True)
