"""Groups of parameters: a number of them, or lists."""

import pytest
import torch

from worker_runtime.torch.parameter_groups import read_groups


def make_parameters(count: int = 5) -> list[tuple[str, torch.Tensor]]:
    return [(str(index), torch.zeros(1, requires_grad=True)) for index in range(count)]


def read_numbers(parameters: list[tuple[str, torch.Tensor]], groups: object) -> list[int | None]:
    read = read_groups(parameters, groups)
    return [read.get(parameter) for _, parameter in parameters]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(None, [None] * 5), (0, [None] * 5), (1, [0] * 5), (2, [0, 0, 0, 1, 1]), (5, [0, 1, 2, 3, 4])],
)
def test_a_number_makes_groups_of_about_one_size(groups: int | None, expected: list[int | None]) -> None:
    assert read_numbers(make_parameters(), groups) == expected


def test_more_groups_than_parameters_are_no_harm() -> None:
    assert len(set(read_numbers(make_parameters(3), 10))) == 3


def test_lists_make_these_groups_and_leave_the_others_free() -> None:
    parameters = make_parameters()
    tensors = [parameter for _, parameter in parameters]
    assert read_numbers(parameters, [[tensors[3], tensors[0]], (tensors[4],)]) == [0, None, None, 0, 1]


def test_parameters_that_are_frozen_are_in_no_group() -> None:
    parameters = make_parameters(2)
    parameters[0][1].requires_grad_(requires_grad=False)
    assert read_numbers(parameters, 1) == [None, 0]
    assert read_numbers(parameters, [[parameter for _, parameter in parameters]]) == [None, 0]


@pytest.mark.parametrize(
    ("make_groups", "error", "message"),
    [
        (lambda _: -1, ValueError, "non-negative integer"),
        (lambda _: "2", TypeError, "non-negative integer"),
        (lambda _: [["a"]], ValueError, "groups must consist of torch.Tensor"),
        (lambda tensors: [tensors, tensors[:1]], ValueError, "only appear once in groups"),
    ],
)
def test_what_is_wrong_with_groups_is_said(make_groups: object, error: type[Exception], message: str) -> None:
    parameters = make_parameters(2)
    with pytest.raises(error, match=message):
        read_groups(parameters, make_groups([parameter for _, parameter in parameters]))
