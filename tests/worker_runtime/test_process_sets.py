"""Which sets there are, and who is in them."""

import pytest

from worker_runtime.operation import Members
from worker_runtime.process_sets import ProcessSets


def test_all_ranks_are_in_set_0() -> None:
    sets = ProcessSets(2, 4)
    assert sets.find(0, "allreduce 'x'") == Members(0, (0, 1, 2, 3), 2)
    assert (sets.numbers, sets.count(0), sets.list_ranks(0), sets.version(0)) == ((0,), 4, (0, 1, 2, 3), -1)


def test_a_set_is_found_by_its_members_and_by_nobody_else() -> None:
    sets = ProcessSets(2, 4)
    sets.add(1, (1, 2), 7)
    sets.add(2, (0, 3), 8)
    assert sets.find(1, "allreduce 'x'") == Members(1, (1, 2), 2)
    assert sets.list_ranks(2) == (0, 3)
    with pytest.raises(ValueError, match=r"^allreduce 'x': Rank 2 is not a member of the provided process set\.$"):
        sets.find(2, "allreduce 'x'")


def test_a_set_that_never_was_or_is_gone_is_not_found() -> None:
    sets = ProcessSets(0, 2)
    sets.add(1, (0, 1), 3)
    sets.remove(1)
    for number in (1, 5):
        with pytest.raises(ValueError, match=rf"^barrier: process set {number} does not exist, or has not been regist"):
            sets.find(number, "barrier")


def test_a_number_is_used_again_but_its_version_tells_the_sets_apart() -> None:
    sets = ProcessSets(0, 3)
    assert sets.find_free() == 1
    sets.add(1, (0, 1), 4)
    sets.add(2, (0, 2), 5)
    assert sets.find_free() == 3
    sets.remove(1)
    assert sets.find_free() == 1
    sets.add(1, (0, 2), 9)
    assert (sets.numbers, sets.version(1), sets.version(2)) == ((0, 1, 2), 9, 5)
