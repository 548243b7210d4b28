"""What a joined rank contributes changes nothing; and the others' collectives run."""

import pytest
import torch

from tests.worker_runtime.collectives.ways import compute, in_three_ways, run
from tests.worker_runtime.threads import ELEMENTWISE, ThreadEngine
from worker_runtime.collectives.adasum import Adasum
from worker_runtime.collectives.agreements import CommitRound
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.combination import Combination
from worker_runtime.collectives.dtypes import FLOATS, REDUCIBLE
from worker_runtime.collectives.neutral import make_neutral
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction, Release

PAIR = Members(0, (0, 1), 0)


def make_input(rank: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False, rank == 0])
    signed = dtype != torch.uint8
    return torch.tensor([5, 3, rank + 1, -7 if signed else 9]).to(dtype)


@pytest.mark.parametrize("reduction", [Reduction.MIN, Reduction.MAX], ids=lambda reduction: reduction.name)
def test_a_joined_rank_sends_keys_where_another_has_a_nan(reduction: Reduction) -> None:
    def body(engine: ThreadEngine) -> object:
        values = [torch.tensor([engine.rank, torch.nan if engine.rank else 1.0], dtype=dtype) for dtype in FLOATS]
        return engine.run(Allreduce(values, Combination(reduction), engine.all, "allreduce.x"))

    for found in run(body, size=3, way="gloo", joined=2)[:2]:
        for each in found:
            assert each[0] == (0 if reduction is Reduction.MIN else 1)
            assert each[1].isnan()


@in_three_ways
@pytest.mark.parametrize("reduction", ELEMENTWISE, ids=lambda reduction: reduction.name)
def test_a_joined_rank_changes_no_allreduce(reduction: Reduction, way: str) -> None:
    dtypes = sorted(REDUCIBLE[reduction], key=str)

    def body(engine: ThreadEngine) -> object:
        own, how = [make_input(engine.rank, dtype) for dtype in dtypes], Combination(reduction)
        operations = [Allreduce(tensors, how, engine.all, "a.x") for tensors in [*([one] for one in own), own]]
        return [[result.to(torch.complex128).tolist() for result in engine.run(op)] for op in operations]

    expected = [
        compute(reduction, [make_input(rank, dtype) for rank in (0, 2)], size=3).to(torch.complex128).tolist()
        for dtype in dtypes
    ]
    first, _, last = run(body, size=3, way=way, joined=1)
    assert first == last
    singles, group = [results[0] for results in first[:-1]], first[-1]
    torch.testing.assert_close(_flat(singles), _flat(expected), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(_flat(group), _flat(expected), rtol=1e-2, atol=1e-2)


def _flat(lists: list[list[complex]]) -> torch.Tensor:
    return torch.tensor([number for numbers in lists for number in numbers])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_factors_do_not_change_what_is_neutral(dtype: torch.dtype) -> None:
    def body(engine: ThreadEngine) -> object:
        how = Combination(Reduction.MIN, -20.0, 0.05)
        x = torch.tensor([-30000, 40]).to(dtype)
        return engine.run(Allreduce([x], how, engine.all, "allreduce.x"))[0].tolist()

    assert run(body, way="gloo", joined=1)[0] == [30000, -40]


def test_a_joined_rank_changes_no_adasum() -> None:
    def body(engine: ThreadEngine) -> object:
        x = [torch.tensor([1.0, 2.0]), torch.eye(3)[engine.rank]]
        operation = Adasum(x, Combination(Reduction.ADASUM, 2.0, 0.5), engine.all, "allreduce.x")
        return [result.tolist() for result in engine.run(operation)]

    expected = [[1.0, 2.0], [1.0, 0.0, 1.0]]
    assert run(body, size=3, joined=1) == [expected, None, expected]


def test_a_joined_rank_gives_no_rows_where_that_is_tolerated() -> None:
    def body(engine: ThreadEngine) -> object:
        tensors = [torch.full((engine.rank + 1, 2), engine.rank), torch.zeros(1, dtype=torch.bfloat16)]
        operation = Allgather(tensors, engine.all, "allgather.x", tolerates_joined=True)
        return [gathered.tensor.tolist() for gathered in engine.run(operation)]

    expected = [[[0, 0], *[[2, 2]] * 3], [0.0, 0.0]]
    assert run(body, size=3, joined=1) == [expected, None, expected]


def test_operations_without_data_of_their_own_start_no_work_on_a_joined_rank() -> None:
    for operation in (Allreduce([torch.ones(2)], Combination(), PAIR, "allreduce.x"), CommitRound(PAIR)):
        release = Release(3, operation.request, (0, 1), joined=(1,))
        neutral = make_neutral(release, 1)
        assert (neutral.title, neutral.request) == (operation.title, operation.request)
        assert neutral.start(None, release) == ()
        assert neutral.finish(release, memoryview(b"")) is None


def test_a_joined_rank_has_no_part_in_what_needs_it() -> None:
    operation = Broadcast([torch.ones(50_000)], 0, PAIR, "broadcast.x")
    release = Release(3, operation.request, (0, 1), joined=(1,))
    with pytest.raises(ValueError, match="'x' is not supported with Join at this time"):
        make_neutral(release, 1)
