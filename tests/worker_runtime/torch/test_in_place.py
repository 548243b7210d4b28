"""What is overwritten in place: parameters and views, and autograd knows of it."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.operations import FORMS, KINDS, NEEDED, call
from tests.worker_runtime.ranks import RankPool

pytestmark = pytest.mark.devices

IN_PLACE = [form for form in FORMS if form.endswith("_")]


@pytest.mark.parametrize("form", IN_PLACE)
def test_a_form_in_place_overwrites_a_parameter_and_a_view(ranks: RankPool, form: str) -> None:
    needed = NEEDED.get(KINDS[form], {})

    def body() -> object:
        parameter = torch.nn.Parameter(torch.full((2,), 2.0 * hvd.rank()))
        call(hvd, form, parameter, **needed)
        whole = torch.zeros(2, 4)
        call(hvd, form, whole[:, ::2].add_(2.0 * hvd.rank()), **needed)
        return parameter.tolist(), parameter.requires_grad, whole.tolist()

    value = 0.0 if needed else 1.0  # the root's, or the average
    assert ranks.run(body) == [([value] * 2, True, [[value, 0.0] * 2] * 2)] * 2


@pytest.mark.parametrize("form", [*IN_PLACE, "broadcast_parameters"])
def test_autograd_notices_what_a_form_overwrites(ranks: RankPool, form: str) -> None:
    """Small tensors travel inside the request, large ones through gloo."""

    def body() -> None:
        for size, columns in ((3, 2), (3, 1), (100_000, 2), (100_000, 1)):
            x = torch.ones(size, 2, requires_grad=True)
            y = x.exp()  # whose values backward needs
            if form == "broadcast_parameters":
                hvd.broadcast_parameters([y[:, :columns]], 0)
            else:
                call(hvd, form, y[:, :columns], **NEEDED.get(KINDS[form], {}))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()

    ranks.run(body)


def test_a_tensor_of_inference_mode_is_reduced_in_place(ranks: RankPool) -> None:
    """The tensor has no version that autograd could compare, neither inside inference mode nor outside."""

    def body() -> object:
        with torch.inference_mode():
            x = hvd.allreduce_(torch.ones(2), op=hvd.Sum)
        return hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Sum)).tolist()

    assert ranks.run(body) == [[4.0, 4.0]] * 2
