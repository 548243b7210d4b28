"""Adasum against a reference that passes whole vectors from rank to rank."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import in_three_ways, run
from tests.worker_runtime.random_collectives.results import reduce_adasum
from tests.worker_runtime.threads import ThreadEngine
from worker_runtime.collectives.adasum import Adasum, list_levels
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction

ADASUM = Combination(Reduction.ADASUM)
SHAPES = [(3,), (), (50, 7), (0, 2), (2, 2), (1,)]


def make_input(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


@in_three_ways
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_adasum_of_any_number_of_ranks_agrees_with_the_reference(size: int, way: str) -> None:
    dtypes = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

    def body(engine: ThreadEngine) -> object:
        return {
            dtype: engine.run(Adasum(make_input(engine.rank, dtype), ADASUM, engine.all, "allreduce.x"))
            for dtype in dtypes
        }

    results = run(body, way=way, size=size)
    for dtype, tolerance in dtypes.items():
        inputs = [make_input(rank, dtype) for rank in range(size)]
        for index, shape in enumerate(SHAPES):
            reference = reduce_adasum([tensors[index].double() for tensors in inputs])
            result = results[0][dtype][index]
            assert (result.dtype, result.shape) == (dtype, shape)
            torch.testing.assert_close(result.double(), reference, rtol=tolerance, atol=tolerance)
            for other in results:
                assert torch.equal(other[dtype][index], result)


def test_orthogonal_vectors_add_up_and_parallel_ones_are_averaged() -> None:
    def body(engine: ThreadEngine) -> object:
        axes, same, zero = torch.eye(4)[engine.rank], torch.tensor([1.0, 2.0]), torch.zeros(3)
        results = engine.run(Adasum([axes, same, zero], ADASUM, engine.all, "allreduce.x"))
        return [result.tolist() for result in results]

    assert run(body, size=4) == [[[1.0] * 4, [1.0, 2.0], [0.0] * 3]] * 4


def test_factors_apply_and_the_result_goes_into_the_given_tensor() -> None:
    def body(engine: ThreadEngine) -> object:
        base = torch.ones(2, 6)
        part = base[:, ::2]
        how = Combination(Reduction.ADASUM, 2.0, 5.0)
        (result,) = engine.run(Adasum([part], how, engine.all, "allreduce.x", [part]))
        assert result is part
        left = torch.ones(3)
        engine.run(Adasum([left], how, engine.all, "allreduce.x"))
        return base.tolist(), left.tolist()

    assert run(body, size=3)[2] == ([[10.0, 1.0] * 3] * 2, [1.0] * 3)


@pytest.mark.parametrize("size", range(1, 20))
def test_every_rank_is_combined_into_the_first_one_once(size: int) -> None:
    merged = {position: {position} for position in range(size)}
    for pairs in list_levels(size):
        assert len({position for pair in pairs for position in pair}) == 2 * len(pairs)  # a level runs together
        for first, second in pairs:
            merged[first] |= merged.pop(second)
    assert merged == {0: set(range(size))}
