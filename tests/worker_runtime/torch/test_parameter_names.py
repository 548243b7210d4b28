"""Names of parameters: none, or one for each."""

import pytest
import torch

from worker_runtime.torch.parameter_names import read_names


def make_optimizer() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return parameters, torch.optim.SGD(parameters, lr=1.0)


@pytest.mark.parametrize("given", [None, []])
def test_names_need_not_be_given(given: list[tuple[str, torch.Tensor]] | None) -> None:
    assert read_names(make_optimizer()[1], given) == {}


def test_more_may_be_named_than_the_optimizer_has() -> None:
    (first, second), optimizer = make_optimizer()
    other = torch.zeros(1)
    named = read_names(optimizer, iter([("a", first), ("b", second), ("c", other)]))
    assert named == {first: "a", second: "b", other: "c"}


@pytest.mark.parametrize(
    ("make_given", "message"),
    [
        (lambda parameters: parameters, "tuples"),
        (lambda parameters: [("a", parameters[0]), ("a", parameters[1])], "more than once: a"),
        (
            lambda parameters: [("a", parameters[0])],
            r"lacks parameters of the optimizer: allreduce.noname.0.1 \(id \d+\)",
        ),
    ],
)
def test_what_is_wrong_with_names_is_said(make_given: object, message: str) -> None:
    parameters, optimizer = make_optimizer()
    with pytest.raises(ValueError, match=message):
        read_names(optimizer, make_given(parameters))
