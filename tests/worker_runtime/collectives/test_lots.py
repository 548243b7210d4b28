"""Which tensors travel in one buffer or message, and that their values come back to where they belong."""

import pytest
import torch

from worker_runtime.collectives import lots
from worker_runtime.collectives.lots import (
    Lot,
    distribute,
    find_place,
    gather,
    gather_in_place,
    plan_lots,
    sort_parcels,
)

SINGLE = Lot(torch.float32, (2, 3), (0,), (6,))


def test_small_tensors_of_one_dtype_are_one_lot_and_large_ones_travel_alone() -> None:
    large = (lots.LARGE_BYTES // 4,)
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float32, torch.int64]
    shapes = [(2, 3), (), large, (0,), (4,)]
    assert plan_lots(dtypes, shapes) == (
        Lot(torch.float32, (6,), (0, 3), (6, 0)),
        Lot(torch.int64, (5,), (1, 4), (1, 4)),
        Lot(torch.float32, large, (2,), large),
    )


def test_a_lot_of_one_keeps_its_shape() -> None:
    (lot,) = plan_lots([torch.float32], [(2, 3)])
    assert (lot, lot.single) == (SINGLE, 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_values_come_back_to_where_they_belong(*, in_place: bool) -> None:
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.tensor([1, 2], dtype=torch.int32), torch.tensor(7.0)]
    into = [torch.empty_like(tensor) for tensor in tensors] if in_place else None
    plan = plan_lots([torch.float64, torch.float64, torch.float64], [tuple(tensor.shape) for tensor in tensors])
    results = {}
    for lot in plan:
        buffer = gather(lot, tensors)
        assert buffer.tolist() == [0, 3, 1, 4, 2, 5, 1, 2, 7]
        results |= dict(distribute(lot, buffer, tensors, into))
    for index, tensor in enumerate(tensors):
        assert results[index].dtype == tensor.dtype
        assert torch.equal(results[index], tensor)
        assert (results[index] is into[index]) if in_place else results[index].is_contiguous()


def test_a_single_tensor_is_reduced_right_where_the_result_goes() -> None:
    x, target = torch.ones(2, 3), torch.zeros(2, 3)
    assert gather_in_place(SINGLE, [x], [x]).data_ptr() == x.data_ptr()
    place = gather_in_place(SINGLE, [x], [target])
    assert place.data_ptr() == target.data_ptr()
    assert target.unique().tolist() == [1.0]
    assert gather_in_place(SINGLE, [x], None).data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "target", [torch.zeros(2, 3, dtype=torch.float16), torch.zeros(3, 2).t()], ids=["other dtype", "transposed"]
)
def test_other_results_are_reduced_in_a_buffer(target: torch.Tensor) -> None:
    assert find_place(SINGLE, [target]) is None
    assert gather_in_place(SINGLE, [target], [target]).data_ptr() != target.data_ptr()


def test_small_ones_travel_together_large_ones_alone_and_empty_ones_not_at_all() -> None:
    large = 1 << 30
    assert sort_parcels([3, 0, large, 5, large]) == [(0, 3), (2,), (4,)]
    assert sort_parcels([0, large]) == [(1,)]
    assert sort_parcels([0, 0]) == []
