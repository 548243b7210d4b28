"""Process sets as programs see them."""

import copy
import pickle

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set


def test_a_set_that_is_not_registered_knows_its_ranks_alone() -> None:
    some = ProcessSet(torch.tensor([3, 1]))
    assert (some.ranks, some.process_set_id, some.size(), some.rank(), some.mpi_comm) == (
        [1, 3],
        None,
        None,
        None,
        None,
    )
    assert str(some) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"


def test_a_copied_module_communicates_in_the_same_set_and_what_is_sent_has_its_ranks() -> None:
    some = ProcessSet([0, 2])
    assert copy.deepcopy([some])[0] is some
    assert pickle.loads(pickle.dumps(some)).ranks == [0, 2]  # noqa: S301 - what was dumped here
    assert pickle.loads(pickle.dumps(global_process_set)) is global_process_set  # noqa: S301 - the same


def test_the_global_set_fills_with_init() -> None:
    assert (global_process_set.process_set_id, global_process_set.ranks) == (0, None)
    assert (global_process_set.included(), global_process_set.size(), global_process_set.rank()) == (None, None, None)
    try:
        hvd.init()
        assert (global_process_set.process_set_id, global_process_set.ranks) == (0, [0])
        assert (global_process_set.included(), global_process_set.size(), global_process_set.rank()) == (True, 1, 0)
    finally:
        hvd.shutdown()
    assert global_process_set.ranks is None


@pytest.mark.parametrize("ranks", [["a"], [1.5], 3, None, [...]], ids=str)
def test_something_else_than_ranks_is_refused(ranks: object) -> None:
    with pytest.raises(ValueError, match="give ranks as integers"):
        ProcessSet(ranks)  # type: ignore[arg-type]  # that is the test


def test_a_rank_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a rank stands twice in \[0, 1, 1\]"):
        ProcessSet([1, 0, 1])


def test_whether_a_rank_is_in_a_set_cannot_be_told_before_init() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        ProcessSet([0]).included()


def test_sets_are_added_used_removed_and_their_numbers_used_again(ranks: RankPool) -> None:
    def body() -> object:
        first = add_process_set([2, 0])
        second = add_process_set(ProcessSet([1, 2]))
        seen = [(each.process_set_id, each.ranks, each.size(), each.included()) for each in (first, second)]
        sums = [
            hvd.allreduce(torch.tensor([hvd.rank() + 1]), op=hvd.Sum, process_set=each).item()
            for each in (second, first)
            if each.included()
        ]
        positions = [each.rank() for each in (first, second) if each.included()]
        removed = [remove_process_set(each) for each in (first, first, hvd.global_process_set)]
        third = add_process_set([0, 1])
        return seen, sums, positions, removed, (first.process_set_id, third.process_set_id)

    outcomes = ranks.run(body, size=3)
    for rank, (seen, sums, positions, removed, numbers) in enumerate(outcomes):
        assert seen == [(1, [0, 2], 2, rank != 1), (2, [1, 2], 2, rank != 0)]
        assert sums == {0: [4], 1: [5], 2: [5, 4]}[rank]
        assert positions == {0: [0], 1: [0], 2: [1, 1]}[rank]
        assert removed == [True, False, False]
        assert numbers == (None, 1)


def test_who_is_not_in_a_set_cannot_use_it(ranks: RankPool) -> None:
    def body() -> object:
        some = add_process_set([0])
        removed = add_process_set([1])
        remove_process_set(removed)
        if hvd.rank() == 1:
            with pytest.raises(ValueError, match=r"^allreduce: Rank 1 is not a member of the provided process set\.$"):
                hvd.allreduce(torch.ones(1), process_set=some)
            with pytest.raises(ValueError, match="Rank 1 is not a member"):
                some.rank()
        for wrong in (removed, ProcessSet([0, 1])):
            with pytest.raises(ValueError, match=r"^broadcast 'b': .* does not exist, or has not been registered\.$"):
                hvd.broadcast(torch.ones(1), 0, name="b", process_set=wrong)
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [2.0, 2.0]


def test_wrong_sets_are_refused_before_anything_is_asked(ranks: RankPool) -> None:
    def body() -> object:
        some = add_process_set([0])
        for wrong in ([0], [0, 1], some, ProcessSet([0])):
            with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
                add_process_set(wrong)
        for wrong in ([], [2], [-1, 0]):
            with pytest.raises(ValueError, match="a process set needs at least one of the ranks 0 to 1"):
                add_process_set(wrong)
        return add_process_set([1]).process_set_id

    assert ranks.run(body) == [2, 2]


def test_ranks_that_mean_different_sets_are_told_so_and_go_on(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(hvd.HorovodInternalError, match=r"(?s)\[0\].*\[1\]"):
            add_process_set([hvd.rank()])
        return add_process_set([1]).process_set_id

    assert ranks.run(body) == [1, 1]


def test_shutdown_drops_the_sets(ranks: RankPool) -> None:
    def body() -> object:
        some = add_process_set([0])
        hvd.shutdown()
        between = some.process_set_id
        hvd.init()
        with pytest.raises(ValueError, match=r"has not been registered: it was, but .*add_process_set\(\) anew"):
            hvd.barrier(some)
        return between, some.process_set_id, add_process_set(some) is some, some.process_set_id

    assert ranks.run(body) == [(None, None, True, 1)] * 2


def test_a_set_that_never_was_registered_or_was_removed_is_told_in_horovods_words(ranks: RankPool) -> None:
    def body() -> None:
        removed = add_process_set([0])
        hvd.remove_process_set(removed)
        for process_set in (removed, ProcessSet([0])):
            with pytest.raises(ValueError, match=r"does not exist, or has not been registered\.$"):
                hvd.barrier(process_set)

    ranks.run(body)


def test_before_init_no_set_can_be_added_or_used() -> None:
    for call in (lambda: add_process_set([0]), lambda: hvd.barrier(ProcessSet([0]))):
        with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
            call()
