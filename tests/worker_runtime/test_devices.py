"""Functions of tests get their tensors on the device of their ranks, with the same random numbers on each."""

from collections.abc import Callable

import pytest
import torch

from tests.worker_runtime.devices import OnDevice
from tests.worker_runtime.torch.training import make_model


def test_tensors_lie_on_the_device_unless_their_function_names_another() -> None:
    with OnDevice("meta"):
        made = [torch.ones(2), torch.tensor([1.0]), torch.randn(2), torch.arange(3)]
        named = torch.zeros(2, device="cpu")
    assert {tensor.device.type for tensor in made} == {"meta"}
    assert named.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(3, generator=torch.Generator().manual_seed(1)),
        lambda: torch.rand(3, requires_grad=True),
        lambda: torch.empty(3).uniform_(1, 2),
        lambda: torch.nn.init.xavier_normal_(torch.empty(3, 3)),
        lambda: torch.cat([parameter.flatten() for parameter in make_model().parameters()]),
    ],
    ids=("generator", "gradient", "in place", "init", "model"),
)
def test_random_numbers_are_those_of_the_cpu(draw: Callable[[], torch.Tensor]) -> None:
    torch.manual_seed(1)
    expected = draw()
    torch.manual_seed(1)
    with OnDevice("cpu"):
        drawn = draw()
    assert torch.equal(drawn, expected)
    assert drawn.requires_grad == expected.requires_grad
