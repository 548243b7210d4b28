"""Parameters of an optimizer: names, none or one for each; and groups, a number of them or lists."""

import pytest
import torch

from worker_runtime.torch.optimizer import read_groups, read_names


def make_parameters(count: int = 5) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]


def read_numbers(parameters: list[torch.nn.Parameter], groups: object) -> list[int | None]:
    read = read_groups([(str(index), parameter) for index, parameter in enumerate(parameters)], groups)
    return [read.get(parameter) for parameter in parameters]


def test_names_need_not_be_given() -> None:
    assert read_names(torch.optim.SGD(make_parameters()), None) == {}


def test_more_parameters_may_be_named_than_the_optimizer_has() -> None:
    (first, second), other = make_parameters(2), torch.zeros(1)
    named = read_names(torch.optim.SGD([first, second]), iter([("a", first), ("b", second), ("c", other)]))
    assert named == {first: "a", second: "b", other: "c"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (None, "tuples"),
        ("aa", "more than once: a"),
        ("", "lacks parameters of the optimizer: parameter 0 of group 0, .*; parameter 1 of group 0, "),
        ("a", r"lacks .* optimizer: parameter 1 of group 0, of shape \[\d+\]. Give model.named_parameters\(\)"),
    ],
)
def test_wrong_names_are_refused(names: str | None, message: str) -> None:
    parameters = make_parameters(2)
    given = parameters if names is None else zip(names, parameters, strict=False)
    with pytest.raises(ValueError, match=message):
        read_names(torch.optim.SGD(parameters), given)


@pytest.mark.parametrize(
    ("groups", "expected"), [(None, [None] * 5), (0, [None] * 5), (1, [0] * 5), (2, [0, 0, 0, 1, 1]), (5, [*range(5)])]
)
def test_a_number_makes_groups_of_about_one_size(groups: int | None, expected: list[int | None]) -> None:
    assert read_numbers(make_parameters(), groups) == expected


def test_more_groups_than_parameters_make_one_group_for_each_parameter() -> None:
    assert len(set(read_numbers(make_parameters(3), 10))) == 3


def test_lists_of_parameters_make_groups_and_leave_other_parameters_ungrouped() -> None:
    parameters = make_parameters()
    groups = [[parameters[3], parameters[0]], (parameters[4],)]
    assert read_numbers(parameters, groups) == [0, None, None, 0, 1]


def test_parameters_that_are_frozen_are_in_no_group() -> None:
    parameters = make_parameters(2)
    parameters[0].requires_grad_(requires_grad=False)
    assert read_numbers(parameters, 1) == read_numbers(parameters, [parameters]) == [None, 0]


@pytest.mark.parametrize(
    ("make_groups", "error", "message"),
    [
        (lambda _: -1, ValueError, "non-negative integer"),
        (lambda _: "2", TypeError, "non-negative integer"),
        (lambda _: [["a"]], ValueError, "groups must consist of torch.Tensor"),
        (lambda tensors: [tensors, tensors[:1]], ValueError, "only appear once in groups"),
    ],
)
def test_wrong_groups_are_refused(make_groups: object, error: type[Exception], message: str) -> None:
    parameters = make_parameters(2)
    with pytest.raises(error, match=message):
        read_numbers(parameters, make_groups(parameters))
