"""Allgather under Horovod's arguments; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

FORMS = {
    "allgather": hvd.allgather,
    "allgather_async": lambda x, **more: hvd.synchronize(hvd.allgather_async(x, **more)),
    "grouped_allgather": lambda x, **more: hvd.grouped_allgather([x], **more)[0],
    "grouped_allgather_async": lambda x, **more: hvd.synchronize(hvd.grouped_allgather_async([x], **more))[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_take_all_arguments_and_uneven_rows(ranks: RankPool, form: str) -> None:
    gather = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([1, 2])
        x = torch.full((hvd.rank(), 2), hvd.rank(), dtype=torch.int16)
        among_two = gather(x, name="some", process_set=some).tolist() if some.included() else None
        return gather(x, name="all").tolist(), gather(x).dtype == torch.int16, among_two

    rows = [[1, 1], [2, 2], [2, 2]]
    assert ranks.run(body, size=3) == [(rows, True, rows if rank else None) for rank in range(3)]


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_without_dimensions_is_refused_by_all_forms(ranks: RankPool, form: str) -> None:
    gather = FORMS[form]

    def body() -> object:
        with pytest.raises(ValueError, match=r"^(grouped_)?allgather 'g'"):
            gather(torch.tensor(1), name="g")

    ranks.run(body, size=1)


def test_a_group_is_a_list_in_the_order_of_the_call(ranks: RankPool) -> None:
    def body() -> object:
        result = hvd.grouped_allgather((torch.tensor([hvd.rank()]), torch.ones(hvd.rank(), 1)), "x")
        return type(result) is list, [each.tolist() for each in result]

    assert ranks.run(body) == [(True, [[0, 1], [[1.0]]])] * 2


def test_ranks_that_disagree_are_told_so_and_go_on(ranks: RankPool) -> None:
    def body() -> object:
        for wrong in (
            torch.ones(1, hvd.rank() + 1),
            torch.ones([1] * (hvd.rank() + 1)),
            torch.ones(1).to(kinds[hvd.rank()]),
        ):
            with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched"):
                hvd.allgather(wrong, "x")
        return hvd.allgather(torch.ones(1), "x").tolist()

    kinds = [torch.float32, torch.float64]
    assert ranks.run(body) == [[1.0, 1.0]] * 2


def test_before_init_it_is_an_error() -> None:
    for gather in FORMS.values():
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
            gather(torch.ones(1))
