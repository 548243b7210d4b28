"""Process sets as programs and engines see them, and the names that are counted in each."""

import copy
import pickle

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from worker_runtime.coordination.operation import Members
from worker_runtime.engine.process_sets import Names, ProcessSets
from worker_runtime.membership import runtime

pytestmark = pytest.mark.devices


def test_a_set_that_is_not_registered_knows_its_ranks_alone() -> None:
    some = ProcessSet(torch.tensor([3, 1]))
    assert some.ranks == [1, 3]
    assert {some.process_set_id, some.size(), some.rank(), some.mpi_comm} == {None}
    assert str(some) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"


def test_a_copied_module_communicates_in_the_same_set_and_what_is_sent_has_its_ranks() -> None:
    some = ProcessSet([0, 2])
    assert copy.deepcopy([some])[0] is some
    assert pickle.loads(pickle.dumps(some)).ranks == [0, 2]  # noqa: S301 - what was dumped here
    assert pickle.loads(pickle.dumps(global_process_set)) is global_process_set  # noqa: S301 - what was dumped here


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


@pytest.mark.parametrize("given", [["a"], [1.5], 3, None, [...], [1, 0, 1]], ids=str)
def test_an_argument_that_is_no_list_of_ranks_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"give ranks as integers|\[0, 1, 1\] has a rank twice"):
        ProcessSet(given)


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
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match="Rank 0 is not a member"):
                second.rank()
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


def test_wrong_sets_are_refused_before_any_request(ranks: RankPool) -> None:
    def body() -> object:
        some = add_process_set([0])
        for wrong in ([0], [0, 1], some, ProcessSet([0])):
            with pytest.raises(ValueError, match=r"Attempted to add a duplicate .* process set [01] has these ranks"):
                add_process_set(wrong)
        for wrong in ([], [2], [-1, 0]):
            with pytest.raises(ValueError, match="a process set needs ranks from 0 to 1"):
                add_process_set(wrong)
        numbers = [add_process_set([1]).process_set_id]
        runtime.RUNTIME.engine.supersede_sets()  # as a function does that adds its sets each time
        return [*numbers, add_process_set(some).process_set_id, add_process_set([1]).process_set_id]

    assert ranks.run(body) == [[2, 3, 4]] * 2


def test_the_error_before_all_have_joined_says_where_to_add_sets(
    ranks: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(runtime.Runtime, "is_late", True)
            with pytest.raises(ValueError, match=r"got \[0, 2\]: the other workers train already, .* hvd.elastic.run"):
                add_process_set([0, 2])

    ranks.run(body, size=1)


def test_ranks_that_mean_different_sets_get_an_error_and_continue(ranks: RankPool) -> None:
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
        with pytest.raises(ValueError, match=r"has not been registered: hvd.shutdown.*add_process_set\(\) again"):
            hvd.barrier(some)
        return between, some.process_set_id, add_process_set(some) is some, some.process_set_id

    assert ranks.run(body) == [(None, None, True, 1)] * 2


def test_all_ranks_are_in_set_0() -> None:
    sets = ProcessSets(2, 4)
    members = sets.find(0, "allreduce 'x'")
    assert members == Members(0, (0, 1, 2, 3), 2)
    assert (sets.numbers, sets.count(0), sets.list_ranks(0), sets.find_version(0)) == ((0,), 4, (0, 1, 2, 3), -1)


def test_only_members_find_a_process_set_and_only_until_its_removal() -> None:
    sets = ProcessSets(2, 4)
    sets.add(1, (1, 2), 7)
    sets.add(2, (0, 3), 8)
    members = sets.find(1, "allreduce 'x'")
    assert (members, members.size, members.position) == (Members(1, (1, 2), 2), 2, 1)
    assert sets.list_ranks(2) == (0, 3)
    with pytest.raises(ValueError, match=r"^allreduce 'x': Rank 2 is not a member of the provided process set\.$"):
        sets.find(2, "allreduce 'x'")
    sets.remove(1)
    for number in (1, 5):
        with pytest.raises(ValueError, match=rf"^barrier: process set {number} does not exist, or has not been regist"):
            sets.find(number, "barrier")


def test_a_number_is_used_again_but_its_version_distinguishes_the_sets() -> None:
    sets = ProcessSets(0, 3)
    assert sets.find_free() == 1
    sets.add(1, (0, 1), 4)
    sets.add(2, (0, 2), 5)
    assert sets.find_free() == 3
    sets.remove(1)
    assert sets.find_free() == 1
    sets.add(1, (0, 2), 9)
    assert (sets.numbers, sets.find_version(1), sets.find_version(2)) == ((0, 1, 2), 9, 5)


def test_unnamed_operations_are_counted_for_each_kind_and_set_and_anew_in_a_new_one() -> None:
    """Horovod numbers all by one counter of the process, so that ranks in several sets drift apart."""
    names = Names()
    made = [names.make(kind, None, number) for kind, number in [("a", 0), ("b", 0), ("a", 1), ("a", 0)]]
    assert made == ["a.noname.1", "b.noname.1", "a.noname.1", "a.noname.2"]
    assert names.make("a", "mine", 0) == "a.mine"
    names.forget(1)
    assert [names.make("a", None, number) for number in (0, 1)] == ["a.noname.3", "a.noname.1"]


def test_after_a_join_calls_are_counted_anew_under_new_names() -> None:
    names = Names()
    names.make("a", None, 0)
    names.count_join()
    assert [names.make("a", None, number) for number in (0, 0, 1)] == ["a.noname.1.1", "a.noname.1.2", "a.noname.1.1"]
    names.count_join()
    assert names.make("a", None, 0) == "a.noname.2.1"
