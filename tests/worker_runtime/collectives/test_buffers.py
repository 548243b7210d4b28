"""What may be handed to gloo as it is, and what must be copied."""

import pytest
import torch

from worker_runtime.collectives import buffers
from worker_runtime.collectives.buffers import (
    Fusion,
    distribute,
    find_target,
    fuse_small,
    gather,
    gather_in_place,
    plan_fusions,
)

BASE = torch.arange(24.0).reshape(4, 6)
COMPLEX = torch.tensor([1 + 2j, 3j])


def make_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2)


PLAIN_TENSORS = {"all": BASE, "first rows": BASE[:2], "one row": BASE[2], "scalar": BASE[0, 0], "empty": BASE[:, :0]}
NOT_PLAIN = {
    "columns": BASE[:, ::2],
    "transposed": BASE.t(),
    "expanded": BASE[:1].expand(4, 6),
    "conjugated": COMPLEX.conj(),
    "negative": COMPLEX[:1].conj().imag,
    "of inference mode": make_inference(),
}


@pytest.mark.parametrize("tensor", PLAIN_TENSORS.values(), ids=PLAIN_TENSORS)
def test_plain_tensors_are_used_as_they_are(tensor: torch.Tensor) -> None:
    assert buffers.is_plain(tensor)
    assert buffers.make_rows(tensor).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("tensor", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_tensors_are_not_plain(tensor: torch.Tensor) -> None:
    assert not buffers.is_plain(tensor)
    rows = buffers.make_rows(tensor)
    assert rows.is_contiguous()
    assert rows.tolist() == tensor.tolist()


def test_a_copy_is_row_major_and_has_its_own_memory() -> None:
    for tensor in [*PLAIN_TENSORS.values(), *NOT_PLAIN.values()]:
        copy = buffers.copy(tensor)
        assert buffers.is_plain(copy)
        assert copy.tolist() == tensor.tolist()
        assert not buffers.share_memory(copy, tensor)
    assert buffers.copy(BASE, torch.int16).dtype == torch.int16


def test_bytes_survive_packing() -> None:
    tensors = [BASE.t(), torch.tensor([True]), COMPLEX.conj(), torch.zeros(0), torch.tensor(3, dtype=torch.int16)]
    packed = buffers.pack(tensors)
    assert packed.dtype == torch.uint8
    assert packed.shape == (sum(map(buffers.count_bytes, tensors)),)
    places = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    buffers.unpack(packed, places)
    assert [place.tolist() for place in places] == [tensor.tolist() for tensor in tensors]
    assert buffers.pack([BASE]).data_ptr() == BASE.data_ptr()  # a single plain one without a copy


def test_memory_is_read_and_written_in_place() -> None:
    x = torch.zeros(2, 2, requires_grad=True)
    memory = buffers.view_memory(x)
    memory[:] = torch.ones(4).numpy().tobytes()
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert len(buffers.view_memory(torch.tensor(1.0))) == 4


def test_a_tensor_whose_memory_was_seen_can_be_resized() -> None:
    """Quantization-aware modules resize their scales, which hvd has broadcast before."""
    x = torch.ones(2)
    view = buffers.view_memory(x)
    assert bytes(view) == bytes(memoryview(b"\0\0\x80\x3f" * 2))
    del view
    assert x.resize_(3)[:2].tolist() == [1.0, 1.0]


def test_the_memory_of_a_tensor_outlives_its_place_in_the_tensor() -> None:
    x = torch.full((1000,), 7, dtype=torch.uint8)
    view = buffers.view_memory(x)
    x.data = torch.zeros(1, dtype=torch.uint8)
    assert set(view) == {7}


OVERLAPPING = [
    torch.zeros(20).as_strided(*form) for form in (((3, 3), (1, 1)), ((3, 4), (4, 2)), ((2, 1, 3), (2, 1, 1)))
]
APART = [torch.zeros(20).as_strided(*form) for form in (((2, 2), (2, 3)), ((3, 3), (1, 5)), ((0, 3), (1, 1)))]


def test_expanded_tensors_overlap_themselves_and_no_others() -> None:
    for tensor in (BASE[:1].expand(4, 6), torch.ones(1, 1).expand(1, 2), *OVERLAPPING):
        assert buffers.overlaps_itself(tensor)
    for tensor in (BASE, BASE.t(), BASE[:, ::2], torch.ones(3, 1).expand(3, 1), BASE[:0].expand(0, 6), *APART):
        assert not buffers.overlaps_itself(tensor)


def test_views_share_memory() -> None:
    assert buffers.share_memory(BASE[:1], BASE[2:])
    assert not buffers.share_memory(BASE, BASE.clone())


def test_rows_are_counted_in_bytes() -> None:
    assert buffers.count_row_bytes(torch.float64, (2, 3)) == 48
    assert buffers.count_row_bytes(torch.int8, ()) == 1
    assert buffers.count_row_bytes(torch.int8, (0, 3)) == 0


def test_the_bytes_of_a_single_element_are_seen_whatever_its_stride() -> None:
    """Torch keeps the stride of an only element, and then refuses to see it as bytes."""
    for single in (torch.tensor([1, 2])[::2], torch.tensor([[1, 2], [3, 4]])[:1, :1], torch.tensor(1)):
        assert buffers.is_plain(single)
        assert buffers.view_bytes(single).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


SINGLE = Fusion(torch.float32, (2, 3), (0,), (6,))


def test_small_tensors_of_one_dtype_are_one_lot_and_large_ones_travel_alone() -> None:
    large = (buffers.LARGE_BYTES // 4,)
    dtypes = [torch.float32, torch.int64, torch.float32, torch.float32, torch.int64]
    shapes = [(2, 3), (), large, (0,), (4,)]
    assert plan_fusions(dtypes, shapes) == (
        Fusion(torch.float32, (6,), (0, 3), (6, 0)),
        Fusion(torch.int64, (5,), (1, 4), (1, 4)),
        Fusion(torch.float32, large, (2,), large),
    )


def test_a_single_tensor_keeps_its_shape() -> None:
    (fusion,) = plan_fusions([torch.float32], [(2, 3)])
    assert (fusion, fusion.single) == (SINGLE, 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_values_come_back_to_where_they_belong(*, in_place: bool) -> None:
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.tensor([1, 2], dtype=torch.int32), torch.tensor(7.0)]
    into = [torch.empty_like(tensor) for tensor in tensors] if in_place else None
    plan = plan_fusions([torch.float64, torch.float64, torch.float64], [tuple(tensor.shape) for tensor in tensors])
    results = {}
    for fusion in plan:
        buffer = gather(fusion, tensors)
        assert buffer.tolist() == [0, 3, 1, 4, 2, 5, 1, 2, 7]
        results |= dict(distribute(fusion, buffer, tensors, into))
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
    assert find_target(SINGLE, [target]) is None
    assert gather_in_place(SINGLE, [target], [target]).data_ptr() != target.data_ptr()


def test_small_tensors_are_fused_large_tensors_travel_alone_and_empty_tensors_not_at_all() -> None:
    large = 1 << 30
    assert fuse_small([3, 0, large, 5, large]) == [(0, 3), (2,), (4,)]
    assert fuse_small([0, large]) == [(1,)]
    assert fuse_small([0, 0]) == []
