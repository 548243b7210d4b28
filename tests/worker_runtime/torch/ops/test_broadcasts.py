"""Broadcast under Horovod's arguments; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

FORMS = {
    "broadcast": hvd.broadcast,
    "broadcast_": hvd.broadcast_,
    "broadcast_async": lambda *given, **more: hvd.synchronize(hvd.broadcast_async(*given, **more)),
    "broadcast_async_": lambda *given, **more: hvd.synchronize(hvd.broadcast_async_(*given, **more)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_root_is_a_rank_of_the_job_also_in_a_set(ranks: RankPool, form: str) -> None:
    cast = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([1, 2])
        x = torch.full((2,), hvd.rank())
        result = cast(x, 1)
        y = torch.full((2,), hvd.rank())
        among_two = cast(y, 2, "some", some).tolist() if some.included() else None
        return result.tolist(), x.tolist(), result is x, among_two

    is_in_place = form.endswith("_")
    assert ranks.run(body, size=3) == [
        ([1, 1], [1, 1] if is_in_place else [rank] * 2, is_in_place, [2, 2] if rank else None) for rank in range(3)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_root_that_is_not_in_the_set_is_an_error(ranks: RankPool, form: str) -> None:
    cast = FORMS[form]

    def body() -> object:
        some = hvd.add_process_set([0])
        for root, options in ((9, {}), (-1, {}), (1, {"process_set": some})):
            if not options or some.included():
                with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root}"):
                    cast(torch.ones(1), root, name="b", **options)

    ranks.run(body)


def test_ranks_that_name_other_roots_are_told_so_and_go_on(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match=r"(?i)mismatched broadcast root ranks"):
            hvd.broadcast(torch.ones(1), hvd.rank(), name="x")
        return hvd.broadcast(torch.tensor(hvd.rank()), 1, name="x").item()

    assert ranks.run(body) == [1, 1]


def test_an_in_place_operation_works_on_a_parameter(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        hvd.broadcast_(parameter, 1)
        return parameter.tolist(), parameter.requires_grad

    assert ranks.run(body) == [([1.0, 1.0], True)] * 2


def test_before_init_it_is_an_error() -> None:
    for cast in FORMS.values():
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
            cast(torch.ones(1), 0)
