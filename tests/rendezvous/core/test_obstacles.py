"""What is done, what stands in the way, and what cannot be true, each named as people need it."""

import shlex

import pytest

from rendezvous.core.obstacles import find_contradiction, find_done, find_obstacle
from rendezvous.core.survivors import Survivors
from tests.rendezvous.core.commands import parse_report
from tests.rendezvous.core.lines import show_done

EVERYBODY = "{0,1,2}"


def read(*lines: str) -> Survivors:
    """The reports of ranks 0, 1, ...; "" for one that is gone."""
    reports = {rank: parse_report(shlex.split(line), len(lines)) for rank, line in enumerate(lines) if line}
    return Survivors(len(lines), reports)


@pytest.mark.parametrize(
    ("lines", "done"),
    [
        (["pending=commit.1#4", "pending=commit.1#4", ""], [f"commit#4{EVERYBODY}"]),
        (["pending=commit.1#4", "done=commit.1#4@9", ""], [f"commit#4{EVERYBODY}"]),
        (["pending=commit.1#4", "done=commit.1#5@9", ""], [f"commit#4{EVERYBODY}"]),
        (["pending=commit.1#4", "done=commit.1#3@9", ""], []),
        (["pending=commit.1#4", "", ""], [f"commit#4{EVERYBODY}"]),
        (["pending=commit.1#4{0,2}", "pending=commit.1#9", ""], ["commit#4{0,2}"]),
        (["pending=commit.1#4{0,1}", "pending=commit.1#9", ""], []),
        (["pending=barrier.b seen=3", "done=barrier.b@4", ""], [f"barrier.b{EVERYBODY}"]),
        (["pending=barrier.b seen=4", "done=barrier.b@4", ""], []),
        (["pending=barrier.b@5 seen=5", "done=barrier.b@4", ""], []),
        (["pending=barrier.b@5 seen=5", "done=barrier.b@5", ""], [f"barrier.b{EVERYBODY}"]),
        (["pending=barrier.b", "pending=barrier.b", ""], []),
        (["pending=allreduce.x seen=3", "done=allreduce.x@4", ""], []),
        (["pending=allreduce.x seen=3", "done=allreduce.x@4!6", ""], [f"allreduce.x{EVERYBODY}!6"]),
        (["pending=allreduce.x seen=4", "done=allreduce.x@4!6", ""], []),
        (
            ["pending=allreduce.x@5 seen=5", "done=allreduce.x@4!6", "done=allreduce.x@5!7"],
            [f"allreduce.x{EVERYBODY}!7"],
        ),
    ],
    ids=str,
)
def test_what_counts_as_done(lines: list[str], done: list[str]) -> None:
    assert [show_done(each) for each in find_done(read(*lines))] == done


@pytest.mark.parametrize(
    ("lines", "obstacle"),
    [
        (["pending=allreduce.x", "pending=allreduce.x", ""], None),
        (["pending=allreduce.x!tired", "", ""], "allreduce 'x' cannot be repeated on rank 0: tired"),
        (["pending=allreduce.x!tired", "done=allreduce.x@0!6", ""], None),
        (["", "pending=broadcast.x^0", "done=broadcast.x@1!6"], None),
        (
            ["pending=allreduce.x!tired seen=4", "done=allreduce.x@4!6", ""],
            "allreduce 'x' cannot be repeated on rank 0: tired",
        ),
        (
            ["", "pending=gather.x{1,2}", ""],
            "gather 'x' cannot be repeated on rank 1: rank 2 of its process set is gone",
        ),
        (
            ["", "pending=broadcast.x^0", ""],
            "broadcast 'x' cannot be repeated on rank 1: rank 0, whose data it needs, is gone",
        ),
        (
            ["done=allreduce.x@7", "pending=allreduce.x@7 seen=7", ""],
            "allreduce 'x' cannot be repeated on rank 1: rank 0 has done it already, and may have used the result",
        ),
        (
            ["floor=9 seen=20", "pending=allreduce.x@8 seen=8", ""],
            "allreduce 'x' cannot be repeated on rank 1: rank 0 is too far ahead to know whether it has done it",
        ),
        (["floor=9 seen=20", "pending=allreduce.x@9 seen=9", ""], None),
        (["floor=9 seen=20", "pending=allreduce.x{1,2} seen=3", "pending=allreduce.x{1,2} seen=3"], None),
    ],
    ids=str,
)
def test_what_stands_in_the_way(lines: list[str], obstacle: str | None) -> None:
    assert find_obstacle(read(*(f"continue {line}" if line else "" for line in lines))) == obstacle


def test_the_first_rank_s_obstacle_is_told() -> None:
    both = find_obstacle(read("pending=allreduce.x!first", "pending=allreduce.x!second"))
    assert both is not None
    assert both.endswith("on rank 0: first")


@pytest.mark.parametrize(
    ("lines", "is_one"),
    [
        (["done=commit.1#2@5", "pending=commit.1#2", ""], False),
        (["done=commit.1#2@5", "done=commit.1#2@5", ""], False),
        (["done=commit.1#2@5", "", ""], False),
        (["done=commit.1#2@5", "pending=allreduce.x", ""], True),
        (["done=commit.1#2@5", "pending=commit.1#1", ""], True),
        (["done=commit.1#2@5{0,2}", "pending=allreduce.x", ""], False),
        (["done=commit.1#2@5", "floor=6", ""], False),
    ],
    ids=str,
)
def test_who_has_seen_a_round_committed_that_another_never_asked_for(lines: list[str], is_one: bool) -> None:  # noqa: FBT001 - a table
    assert (find_contradiction(read(*lines)) is not None) is is_one
