"""How much of the communication lies in computation: what is parallel counts once."""

import pytest

from benchmarks.overlap import Interval, count_overlap


@pytest.mark.parametrize(
    ("communication", "computation", "expected"),
    [
        ([(0.0, 4.0)], [(1.0, 2.0), (3.0, 9.0)], (4.0, 2.0)),
        ([(0.0, 4.0), (2.0, 6.0)], [(3.0, 5.0), (4.0, 5.0)], (6.0, 2.0)),
        ([(0.0, 1.0)], [(1.0, 2.0)], (1.0, 0.0)),
        ([(5.0, 6.0), (0.0, 1.0)], [(0.0, 9.0)], (2.0, 2.0)),
        ([], [(0.0, 9.0)], (0.0, 0.0)),
    ],
    ids=("apart", "nested", "touching", "unordered", "none"),
)
def test_work_in_parallel_counts_once(
    communication: list[Interval], computation: list[Interval], expected: tuple[float, float]
) -> None:
    assert count_overlap(communication, computation) == expected
