"""One torch group for each process set, made when it is needed, and ended with the set or the generation."""

from datetime import timedelta
from typing import cast

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.connections import Connections
from worker_runtime.torch_groups import ALL_RANKS, CONNECT_LIMIT, TorchGroup, TorchGroups


class Recorded:
    """A torch group that remembers that it was ended, and whose barriers were waited for."""

    def __init__(self) -> None:
        self.is_ended = False
        self.limits: list[timedelta] = []

    def barrier(self) -> "Recorded":
        """Its work is the group itself."""
        return self

    def wait(self, timeout: timedelta) -> bool:
        """For a barrier."""
        self.limits.append(timeout)
        return True

    def shutdown(self) -> None:
        """End it."""
        self.is_ended = True


class Maker:
    """Makes recorded groups, or cannot."""

    def __init__(self, error: RuntimeError | None = None) -> None:
        self.asked: list[tuple[str, int, int, str, timedelta]] = []
        self.error = error

    def make(self, prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Connections]:
        """As a backend does."""
        self.asked.append((prefix, rank, size, device, limit))
        if self.error is not None:
            raise self.error
        return cast("TorchGroup", Recorded()), Connections(frozenset())


def test_a_group_is_made_once_with_the_ranks_place_in_the_set() -> None:
    maker = Maker()
    groups = TorchGroups(5, maker.make)
    first = groups.find(3, (1, 5, 6))
    assert groups.find(3, (1, 5, 6)) is first
    assert groups.find(ALL_RANKS, tuple(range(8)), "cuda", timedelta(seconds=1)) is not first
    assert maker.asked == [
        ("set/3/cpu", 1, 3, "cpu", CONNECT_LIMIT),
        ("set/-1/cuda", 5, 8, "cuda", timedelta(seconds=1)),
    ]


def test_nobody_leaves_a_set_before_all_are_connected() -> None:
    groups = TorchGroups(0, Maker().make)
    made = cast("Recorded", groups.find(1, (0, 1, 2), limit=timedelta(seconds=3)))
    groups.find(1, (0, 1, 2))
    assert made.limits == [timedelta(seconds=3)]
    of_nccl, of_all = (cast("Recorded", groups.find(*which)) for which in ((1, (0, 1), "cuda"), (ALL_RANKS, (0, 1))))
    assert of_nccl.limits == of_all.limits == []  # a barrier of NCCL's needs to be told a GPU


def test_a_set_that_is_gone_takes_its_groups_along_and_no_others() -> None:
    groups = TorchGroups(0, Maker().make)
    kept, ended = (cast("Recorded", groups.find(version, (0, 1))) for version in (1, 2))
    groups.end(2)
    groups.end(7)  # which had none
    assert (kept.is_ended, ended.is_ended) == (False, True)
    groups.close()
    assert kept.is_ended


def test_closed_groups_make_no_more() -> None:
    groups = TorchGroups(0, Maker().make)
    groups.close()
    with pytest.raises(RuntimeError, match="the group is closed"):
        groups.find(ALL_RANKS, (0, 1))


def test_a_group_that_could_not_be_made_is_tried_again() -> None:
    maker = Maker(RuntimeError("no connection"))
    groups = TorchGroups(0, maker.make)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no connection"):
            groups.find(ALL_RANKS, (0, 1))
    assert len(maker.asked) == 2


def test_abandoned_groups_are_never_ended() -> None:
    groups = TorchGroups(0, Maker().make)
    group = cast("Recorded", groups.find(ALL_RANKS, (0, 1)))
    groups.abandon()
    groups.close()
    assert not group.is_ended


def test_overlapping_sets_communicate_in_crossed_orders_and_leave_no_connection(ranks: RankPool) -> None:
    def body() -> object:
        from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

        pairs = [hvd.add_process_set(pair) for pair in ((0, 1), (1, 2), (0, 2))]
        mine = [pair for pair in pairs if hvd.rank() in (pair.ranks or ())]
        if hvd.rank() == 1:
            mine.reverse()
        large = torch.full((100_000,), float(hvd.rank()))
        handles = [hvd.allreduce_async(large, op=hvd.Sum, name="x", process_set=pair) for pair in mine]
        sums = {tuple(pair.ranks or ()): hvd.synchronize(h)[0].item() for pair, h in zip(mine, handles, strict=True)}
        groups = RUNTIME.executor._attempt.runner._groups
        assert groups is not None
        counts = sorted(len(connections._names) for _, connections in groups._groups.values())
        for pair in pairs:
            hvd.remove_process_set(pair)
        return sums, counts, len(groups._groups)

    expected = {(0, 1): 1.0, (1, 2): 3.0, (0, 2): 2.0}
    for rank, (sums, counts, left) in enumerate(ranks.run(body, size=3)):
        assert sums == {pair: total for pair, total in expected.items() if rank in pair}
        assert counts == [1, 1, 2]
        assert left == 1
