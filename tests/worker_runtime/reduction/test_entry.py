"""One parameter within a step."""

import torch

from worker_runtime.reduction.entry import Entry


def test_a_gradient_is_ready_after_its_passes() -> None:
    entry = Entry(torch.zeros(1, requires_grad=True), "p", 2)
    assert not entry.is_ready
    entry.passes_left -= 2
    assert entry.is_ready


def test_sparse_dimensions_are_those_of_the_present_gradient() -> None:
    entry = Entry(torch.zeros(2, 2, requires_grad=True), "p", 1)
    assert entry.find_sparse_dims() == 0
    entry.parameter.grad = torch.eye(2)
    assert entry.find_sparse_dims() == 0
    entry.parameter.grad = torch.eye(2).to_sparse(1)
    assert entry.find_sparse_dims() == 1


def test_the_form_of_a_parameter_is_the_present_one_and_a_lazy_one_has_none_yet() -> None:
    parameter = torch.nn.UninitializedParameter()
    entry = Entry(parameter, "p", 1)
    assert entry.form is None
    parameter.materialize((2, 3))
    assert entry.find_form() == (torch.float32, torch.device("cpu"), (2, 3), (3, 1))
    parameter.data = parameter.data.double()
    assert entry.find_form()[0] == torch.float64


def test_a_hook_is_removed_once() -> None:
    entry = Entry(torch.zeros(1, requires_grad=True), "p", 1)
    heard = []
    entry.hook = entry.parameter.register_post_accumulate_grad_hook(heard.append)
    entry.detach()
    entry.detach()
    entry.parameter.sum().backward()
    assert heard == []
