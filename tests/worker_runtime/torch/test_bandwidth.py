"""The rounds in which pairs of hosts exchange tensors."""

from itertools import combinations

import pytest

from worker_runtime.torch.bandwidth import MOST_ROUNDS, plan_rounds


@pytest.mark.parametrize("count", range(1, 17))
def test_ranks_meet_each_other_once_and_no_rank_is_in_two_pairs_of_a_round(count: int) -> None:
    rounds = plan_rounds(range(count))
    assert sorted(pair for planned in rounds for pair in planned) == list(combinations(range(count), 2))
    for planned in rounds:
        assert planned
        present = [rank for pair in planned for rank in pair]
        assert len(present) == len(set(present))


def test_of_many_ranks_each_meets_some() -> None:
    rounds = plan_rounds(range(100))
    assert [len(planned) for planned in rounds] == [50] * MOST_ROUNDS
    met = [pair for planned in rounds for pair in planned]
    assert len(set(met)) == len(met)
