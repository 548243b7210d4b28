"""What may be handed to gloo as it is, and what must be copied."""

import pytest
import torch

from worker_runtime.collectives import layout

BASE = torch.arange(24.0).reshape(4, 6)
COMPLEX = torch.tensor([1 + 2j, 3j])


def make_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2)


PLAIN = {"all": BASE, "first rows": BASE[:2], "one row": BASE[2], "scalar": BASE[0, 0], "empty": BASE[:, :0]}
NOT_PLAIN = {
    "columns": BASE[:, ::2],
    "transposed": BASE.t(),
    "expanded": BASE[:1].expand(4, 6),
    "conjugated": COMPLEX.conj(),
    "negative": COMPLEX[:1].conj().imag,
    "of inference mode": make_inference(),
}


@pytest.mark.parametrize("tensor", PLAIN.values(), ids=PLAIN)
def test_plain_tensors_are_used_as_they_are(tensor: torch.Tensor) -> None:
    assert layout.is_plain(tensor)
    assert layout.make_rows(tensor).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("tensor", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_others_are_not(tensor: torch.Tensor) -> None:
    assert not layout.is_plain(tensor)
    rows = layout.make_rows(tensor)
    assert rows.is_contiguous()
    assert rows.tolist() == tensor.tolist()


def test_a_copy_is_row_major_and_has_its_own_memory() -> None:
    for tensor in [*PLAIN.values(), *NOT_PLAIN.values()]:
        copy = layout.copy(tensor)
        assert layout.is_plain(copy)
        assert copy.tolist() == tensor.tolist()
        assert not layout.share_memory(copy, tensor)
    assert layout.copy(BASE, torch.int16).dtype == torch.int16


def test_bytes_survive_packing() -> None:
    tensors = [BASE.t(), torch.tensor([True]), COMPLEX.conj(), torch.zeros(0), torch.tensor(3, dtype=torch.int16)]
    packed = layout.pack(tensors)
    assert packed.dtype == torch.uint8
    assert packed.shape == (sum(map(layout.count_bytes, tensors)),)
    places = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    layout.unpack(packed, places)
    assert [place.tolist() for place in places] == [tensor.tolist() for tensor in tensors]
    assert layout.pack([BASE]).data_ptr() == BASE.data_ptr()  # a single plain one without a copy


def test_memory_is_read_and_written_in_place() -> None:
    x = torch.zeros(2, 2, requires_grad=True)
    memory = layout.view_memory(x)
    memory[:] = torch.ones(4).numpy().tobytes()
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert len(layout.view_memory(torch.tensor(1.0))) == 4


def test_expanded_tensors_overlap_themselves_and_no_others() -> None:
    for tensor in (BASE[:1].expand(4, 6), torch.ones(1, 1).expand(1, 2)):
        assert layout.overlaps_itself(tensor)
    for tensor in (BASE, BASE.t(), BASE[:, ::2], torch.ones(3, 1).expand(3, 1), BASE[:0].expand(0, 6)):
        assert not layout.overlaps_itself(tensor)


def test_views_share_memory() -> None:
    assert layout.share_memory(BASE[:1], BASE[2:])
    assert not layout.share_memory(BASE, BASE.clone())


def test_rows_are_counted_in_bytes() -> None:
    assert layout.count_row_bytes(torch.float64, (2, 3)) == 48
    assert layout.count_row_bytes(torch.int8, ()) == 1
    assert layout.count_row_bytes(torch.int8, (0, 3)) == 0


def test_the_bytes_of_a_single_element_are_seen_whatever_its_stride() -> None:
    """Torch keeps the stride of an only element, and then refuses to see it as bytes."""
    for single in (torch.tensor([1, 2])[::2], torch.tensor([[1, 2], [3, 4]])[:1, :1], torch.tensor(1)):
        assert layout.is_plain(single)
        assert layout.view_bytes(single).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
