"""In which order a gradient's elements travel."""

import pytest
import torch

from worker_runtime.reduction.dense import describe_order, find_strides, is_dense

TENSORS = {
    "contiguous": (torch.zeros(2, 3), True, (3, 1)),
    "transposed": (torch.zeros(2, 3).t(), True, (1, 3)),
    "channels last": (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), True, (60, 1, 15, 3)),
    "with gaps": (torch.zeros(2, 6)[:, ::2], False, (3, 1)),
    "expanded": (torch.zeros(1, 3).expand(2, 3), False, (3, 1)),
    "one element": (torch.zeros(1, 1).as_strided((1, 1), (7, 5)), True, (7, 5)),
    "no element": (torch.zeros(0, 3), True, (3, 1)),
    "no dimension": (torch.zeros(()), True, ()),
}


@pytest.mark.parametrize("name", TENSORS)
def test_dense_tensors_keep_their_order_others_are_rows(name: str) -> None:
    tensor, dense, strides = TENSORS[name]
    assert is_dense(tensor) is dense
    assert find_strides(tensor) == strides


def test_strides_of_single_elements_do_not_count() -> None:
    odd = torch.zeros(3, 1).as_strided((3, 1), (1, 9))
    assert describe_order(odd) == describe_order(torch.zeros(3, 1)) == (1,)
    assert describe_order(torch.zeros(2, 3)) != describe_order(torch.zeros(3, 2).t())
