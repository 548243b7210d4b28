"""Horovod's names and arguments."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.ops import choose_reduction


def test_the_constants_are_horovods_numbers() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 3, 4, 5]


def test_the_average_is_the_default() -> None:
    assert choose_reduction(None) == hvd.Average
    assert choose_reduction(1) == hvd.Sum


@pytest.mark.parametrize(("average", "expected"), [(True, hvd.Average), (False, hvd.Sum)])
def test_the_old_argument_still_works_and_warns(average: bool, expected: int) -> None:  # noqa: FBT001 - Horovod's argument
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        assert choose_reduction(None, average) == expected


def test_the_old_and_the_new_argument_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        choose_reduction(hvd.Sum, average=True)


@pytest.mark.parametrize("op", [2, 6, -1])
def test_an_unknown_operation_is_refused(op: int) -> None:
    with pytest.raises(ValueError, match=f"op={op} is not supported"):
        choose_reduction(op)


def test_compression_is_refused_rather_than_ignored() -> None:
    with pytest.raises(NotImplementedError, match="'compression'"):
        hvd.allreduce(torch.ones(1), compression=object())


def test_names_reach_the_messages(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match=r"^broadcast 'b': received invalid root rank 9"):
            hvd.broadcast_(torch.ones(1), 9, name="b")
        with pytest.raises(ValueError, match=r"^allgather 'g'"):
            hvd.allgather(torch.tensor(1), name="g")
        with pytest.raises(ValueError, match=r"^allreduce 'r'"):
            hvd.allreduce_(torch.ones(1, dtype=torch.int16), name="r")

    ranks.run(body, size=1)


def test_an_in_place_operation_works_on_a_parameter(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        hvd.allreduce_(parameter, op=hvd.Sum)
        summed = parameter.tolist()
        hvd.broadcast_(parameter, 0)
        return summed, parameter.requires_grad

    assert ranks.run(body) == [([1.0, 1.0], True)] * 2
