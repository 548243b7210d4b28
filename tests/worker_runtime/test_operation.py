"""How a member sees its process set."""

from worker_runtime.operation import Members


def test_a_members_place_in_its_set_is_its_rank_in_the_torch_group() -> None:
    members = Members(3, (1, 4, 6), 4)
    assert (members.size, members.position) == (3, 1)
