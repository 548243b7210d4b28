"""Alltoall under Horovod's arguments; what it computes is tested with the collectives."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def test_without_splits_it_is_one_tensor_and_with_them_two(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.arange(2) + 10 * hvd.rank()
        single = hvd.alltoall(x)
        y = torch.arange(3) + 10 * hvd.rank()
        splits = [1, 2] if hvd.rank() == 0 else [0, 3]
        by_list = hvd.alltoall(y, splits)
        by_tensor = hvd.alltoall(y, torch.tensor(splits, dtype=torch.int32), "x")
        began = hvd.synchronize(hvd.alltoall_async(x))
        return (
            single.tolist(),
            [each.tolist() for each in by_list],
            [each.tolist() for each in by_tensor],
            [each.tolist() for each in began],
            by_list[1].dtype == torch.int32,
        )

    first, second = ranks.run(body)
    assert first == ([0, 10], [[0], [1, 0]], [[0], [1, 0]], [[0, 10], [1, 1]], True)
    assert second == ([1, 11], [[1, 2, 10, 11, 12], [2, 3]], [[1, 2, 10, 11, 12], [2, 3]], [[1, 11], [1, 1]], True)


def test_it_works_in_a_set(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 2])
        return hvd.alltoall(torch.arange(2) + 10 * hvd.rank(), process_set=some).tolist() if some.included() else None

    assert ranks.run(body, size=3) == [[0, 20], None, [1, 21]]


@pytest.mark.parametrize("alltoall", [hvd.alltoall, hvd.alltoall_async], ids=["sync", "async"])
def test_splits_that_do_not_fit_are_refused(ranks: RankPool, alltoall: object) -> None:
    """Rows that are left over are an error: Horovod drops them in silence."""

    def body() -> object:
        for splits, message in (
            ([1, 2, 0], "Number of entries in splits"),
            ([2, 2], "greater than the first dimension"),
            ([1, 1], "the rest would be dropped"),
            ([4, -1], "negative"),
            (torch.tensor([1.0, 2.0]), "give integers"),
            (None, "no multiple of the number of ranks"),
        ):
            with pytest.raises(ValueError, match=f"alltoall 'x': .*{message}"):
                alltoall(torch.ones(3), splits, "x")
        return hvd.alltoall(torch.ones(2), name="x").tolist()

    assert ranks.run(body) == [[1.0, 1.0]] * 2


def test_before_init_it_is_an_error() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.alltoall(torch.ones(1))
