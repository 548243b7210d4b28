"""Python objects between workers under Horovod's arguments; how they travel is tested with `objects`."""

import pytest

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def test_objects_travel_by_horovods_names(ranks: RankPool) -> None:
    def body() -> object:
        return hvd.broadcast_object({"a": hvd.rank()}, root_rank=1, name="x"), hvd.allgather_object(
            hvd.rank(), name="y"
        )

    assert ranks.run(body) == [({"a": 1}, [0, 1])] * 2


def test_in_a_set_the_root_is_a_rank_of_the_job(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([1, 2])
        if some.included():
            return hvd.broadcast_object(hvd.rank(), 2, "o", some), hvd.allgather_object(hvd.rank(), "all", some)
        with pytest.raises(ValueError, match="Rank 0 is not a member"):
            hvd.broadcast_object(1, 1, process_set=some)
        with pytest.raises(ValueError, match="Rank 0 is not a member"):
            hvd.allgather_object(1, process_set=some)
        return None

    assert ranks.run(body, size=3) == [None, (2, [1, 2]), (2, [1, 2])]
