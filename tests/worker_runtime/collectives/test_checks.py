"""What is wrong with a call on this rank alone."""

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from worker_runtime.collectives.checks import check_targets, check_tensors, make_title


def test_a_title_has_the_users_name() -> None:
    assert make_title("allreduce.loss") == "allreduce 'loss'"
    assert make_title("allreduce.noname.3") == "allreduce 'noname.3'"
    assert make_title("barrier") == "barrier"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "there are no tensors"),
        ([torch.zeros(2, 2).to_sparse()], r"sparse tensors are not supported.*to_dense"),
        ([torch.zeros(2, device="meta")], r"tensors on meta are not supported.*x.cpu"),
        ([torch.zeros(2), torch.zeros(2, device="meta")], "Tensors in list must be on same device"),
    ],
    ids=["none", "sparse", "not on the CPU", "on several devices"],
)
def test_tensors_that_cannot_be_communicated_are_refused(tensors: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"allreduce 'x': .*{message}"):
        check_tensors("allreduce 'x'", tensors)


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ([], "1 tensors and 0 for the results"),
        ([torch.zeros(3)], r"shape \[2\].*cannot go into.*shape \[3\]"),
        ([torch.zeros(2, dtype=torch.int8)], "torch.int8"),
        ([torch.zeros(2, device="meta")], "on meta"),
        ([torch.zeros(2).to_sparse()], "cannot go into"),
        ([torch.zeros(1).expand(2)], r"expand\(\); clone it"),
    ],
    ids=["none", "other shape", "other dtype", "other device", "sparse", "expanded"],
)
def test_results_that_cannot_be_written_are_refused(into: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"x: .*{message}"):
        check_targets("x", into, [torch.zeros(2)])


def test_an_input_may_be_its_own_result() -> None:
    x = torch.zeros(4, 4)[:, ::2]
    check_targets("x", [x], [x])


def check_ones(x: torch.Tensor) -> torch.Tensor:
    """What a program wants to transform: a collective on something else."""
    check_tensors("allreduce 'x'", [torch.ones(2)])
    return x.sum()


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.func.vmap(check_ones)(x.reshape(1, 2)),
        torch.func.grad(check_ones),
        torch.func.functionalize(check_ones),
    ],
    ids=["vmap", "grad", "functionalize"],
)
def test_a_collective_inside_a_transform_is_refused(run: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(ValueError, match=r"allreduce 'x': collectives cannot run inside vmap, grad, jvp"):
        run(torch.ones(2))
    assert check_tensors("allreduce 'x'", [torch.ones(2)]) == "cpu"


def test_a_tensor_without_values_is_refused_and_so_is_where_all_are() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
        with pytest.raises(ValueError, match=r"x: collectives cannot run under FakeTensorMode or make_fx"):
            check_tensors("x", [fake])
    with pytest.raises(ValueError, match=r"x: a FakeTensor stands for other tensors; give those it stands for"):
        check_tensors("x", [torch.ones(2), fake])

    def call(x: torch.Tensor) -> torch.Tensor:
        check_tensors("x", [torch.ones(2)])
        return x

    with pytest.raises(ValueError, match=r"x: collectives cannot run under FakeTensorMode or make_fx"):
        make_fx(call)(torch.ones(2))


def test_modes_that_only_look_on_and_subclasses_that_change_nothing_are_fine() -> None:
    class Own(torch.Tensor):
        pass

    with FlopCounterMode(display=False):
        assert check_tensors("x", [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Own)])
