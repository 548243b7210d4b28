"""What is wrong with a call on this rank alone."""

import pytest
import torch

from worker_runtime.collectives.checks import check_rows, check_targets, check_tensors, make_title


def test_a_title_has_the_users_name() -> None:
    assert make_title("allreduce.loss") == "allreduce 'loss'"
    assert make_title("allreduce.noname.3") == "allreduce 'noname.3'"
    assert make_title("barrier") == "barrier"


def test_the_device_is_told() -> None:
    assert check_tensors("x", [torch.zeros(1), torch.zeros(2)]) == "cpu"


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


def test_a_scalar_has_no_rows() -> None:
    check_rows("x", [torch.zeros(0)])
    with pytest.raises(ValueError, match=r"x: .*reshape\(1\)"):
        check_rows("x", [torch.zeros(1), torch.tensor(1.0)])


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
