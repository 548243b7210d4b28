"""What is copied to the host's memory is whole and its own, wherever the copy is made."""

import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch

from worker_runtime.torch.elastic.handlers import copy_to_host


def make_quantized() -> torch.Tensor:
    """What torch is about to give up, and still has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2, 3, dtype=torch.float32), 0.1, 0, torch.qint8)


EARLIER_COPIES = {
    "as it was": torch.arange(6.0, dtype=torch.float32).reshape(2, 3),
    "of another shape": torch.arange(4.0, dtype=torch.float32),
    "of another dtype": torch.arange(6.0, dtype=torch.float64).reshape(2, 3),
    "of other strides": torch.arange(6.0, dtype=torch.float32).reshape(3, 2).t(),
    "sparse": torch.eye(2, dtype=torch.float32).to_sparse(),
    "conjugate": torch.tensor([[1 + 2j]], dtype=torch.complex64).conj(),
    "quantized": make_quantized(),
    "a parameter": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float32)),
}


def nest(tensor: torch.Tensor) -> dict[str, Any]:
    """As state_dicts hold it."""
    return OrderedDict(state={0: {"momentum": tensor}}, groups=[{"lr": 0.1, "betas": (0.9, tensor)}])


def list_tensors(nested: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors in what `nest` returns."""
    return [nested["state"][0]["momentum"], nested["groups"][0]["betas"][1]]


def test_a_second_copy_is_made_in_place_of_the_first() -> None:
    tensor = torch.zeros(3, dtype=torch.float32)
    first = copy_to_host(nest(tensor))
    places = [each.data_ptr() for each in list_tensors(first)]
    second = copy_to_host(nest(tensor + 1), first)
    assert [each.data_ptr() for each in list_tensors(second)] == places
    assert [each.tolist() for each in list_tensors(second)] == [[1.0] * 3] * 2
    assert tensor.tolist() == [0.0] * 3


@pytest.mark.parametrize("before", EARLIER_COPIES)
@pytest.mark.parametrize("after", EARLIER_COPIES)
def test_a_copy_is_right_whatever_was_there_before(before: str, after: str) -> None:
    given = EARLIER_COPIES[after].detach()
    for copied in list_tensors(copy_to_host(nest(EARLIER_COPIES[after]), copy_to_host(nest(EARLIER_COPIES[before])))):
        assert (copied.dtype, copied.layout, copied.shape) == (given.dtype, given.layout, given.shape)
        assert copied.is_quantized == given.is_quantized
        assert torch.equal(copied.to_dense(), given.to_dense()) if given.is_sparse else torch.equal(copied, given)
        assert not copied.requires_grad


@pytest.mark.parametrize("earlier", [None, {}, [], {"state": None, "groups": None}, {"state": {}, "groups": [{}, {}]}])
def test_an_earlier_copy_of_something_else_is_no_hindrance(earlier: object) -> None:
    given = nest(torch.ones(2, dtype=torch.float32))
    copied = copy_to_host(given, earlier)
    assert (type(copied), copied["groups"][0]["lr"]) == (OrderedDict, 0.1)
    assert [each.tolist() for each in list_tensors(copied)] == [[1.0, 1.0]] * 2


def test_a_copy_made_in_inference_mode_is_not_written_to() -> None:
    with torch.inference_mode():
        earlier = copy_to_host(torch.ones(2, dtype=torch.float32))
    assert copy_to_host(torch.zeros(2, dtype=torch.float32), earlier).tolist() == [0.0, 0.0]


def test_a_copy_of_a_modules_state_keeps_its_metadata() -> None:
    state = torch.nn.Linear(1, 1).state_dict()
    assert copy_to_host(state)._metadata == state._metadata != {}


def test_other_objects_are_copied_deeply() -> None:
    given = {"milestones": {3: 1}, "names": ["a"]}
    copied = copy_to_host(given, copy_to_host(given))
    given["milestones"][3] = 2
    given["names"].append("b")
    assert copied == {"milestones": {3: 1}, "names": ["a"]}
