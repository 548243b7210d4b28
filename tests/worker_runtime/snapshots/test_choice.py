"""Which snapshot all ranks continue from."""

from collections.abc import Iterable

import pytest

from worker_runtime.snapshots.choice import Choice, Summary, choose, find_difference
from worker_runtime.snapshots.memory import NOWHERE, Key, Record

OLD, NEW = Key(0, 8), Key(0, 9)
NEXT = Key(1, 9)


def make(
    rank: int, states: Iterable[Key], random: Iterable[Key] = (), *, size: int = 2, origin: Key = NOWHERE
) -> Summary:
    """What a rank has, of which it was the same rank."""
    return Summary(
        ("model", "step"),
        tuple(Record(key, origin, rank, size, b"layout") for key in states),
        tuple(Record(key, origin, rank, size) for key in random),
    )


@pytest.mark.parametrize(
    ("summaries", "expected"),
    [
        pytest.param([make(0, []), make(1, [])], None, id="the first round"),
        pytest.param([make(0, [OLD, NEW], [OLD, NEW]), make(1, [], [OLD, NEW])], Choice(NEW, 0, ()), id="all"),
        pytest.param(
            [make(0, [OLD, NEW], [OLD, NEW]), make(1, [], [OLD])],
            Choice(OLD, 0, ()),
            id="one had not completed the last",
        ),
        pytest.param([make(0, []), make(1, [OLD, NEW], [NEW])], Choice(NEW, 1, (0,)), id="a new host"),
        pytest.param(
            [make(0, [NEXT, OLD], [NEXT, OLD], origin=OLD), make(1, [], [OLD])],
            Choice(OLD, 0, ()),
            id="the first save of a round that was not completed",
        ),
        pytest.param(
            [make(0, [NEXT, OLD], [NEXT, OLD]), make(1, [], [OLD])],
            Choice(NEXT, 0, (1,)),
            id="a round that has begun anew",
        ),
        pytest.param(
            [make(0, [NEW], [NEW], size=4), make(1, [], [NEW], size=4)], Choice(NEW, 0, None), id="fewer workers"
        ),
        pytest.param(
            [make(0, [Key(0, 50)], [Key(0, 50)]), make(1, [NEXT], [NEXT])],
            Choice(NEXT, 1, (0,)),
            id="a slot that was not used in the last round",
        ),
    ],
)
def test_the_newest_save_that_all_had_completed_is_chosen(summaries: list[Summary], expected: Choice | None) -> None:
    assert choose(summaries) == expected


def test_ranks_that_keep_something_else_do_not_continue() -> None:
    one, other = make(0, [NEW]), make(1, [NEW])
    choice = choose([one, other])
    assert choice is not None
    assert find_difference([one, other], choice) is None
    renamed = Summary(("model",), other.states)
    assert find_difference([one, renamed], choice) == "rank 0 keeps model, step, and rank 1 keeps model"
    reshaped = Summary(one.names, (Record(NEW, NOWHERE, 1, 2, b"other"),))
    assert "rank 0 and rank 1 have other names or shapes" in (find_difference([one, reshaped], choice) or "")
