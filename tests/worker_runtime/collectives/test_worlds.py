"""The worlds outlast what happens in one of them, and tell on which rank it was.

It happens on rank 0, whose end the forge sees first, and while it has yet to read what the others have left.
"""

import os
import threading
from collections.abc import Callable

import pytest

from tests.worker_runtime.collectives.worlds import RankFailedError, World, Worlds


def give_a_lock(world: World) -> object:
    """Which nobody can pickle."""
    return "fine" if world.rank else threading.Lock()


def end(world: World) -> None:
    """Without a word."""
    if world.rank == 0:
        os._exit(7)


def raise_an_error(world: World) -> None:
    """As a test that fails does."""
    if world.rank == 0:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (give_a_lock, r"^rank 0: ended with 1"),
        (end, r"^rank 0: ended with 7"),
        (raise_an_error, r"^rank 0: (.|\n)*ValueError: no"),
    ],
)
def test_what_happens_on_one_rank_is_told_and_the_next_world_is_well(
    worlds: Worlds, function: Callable[[World], object], told: str
) -> None:
    with pytest.raises(RankFailedError, match=told):
        worlds.run(function)
    assert worlds.run(lambda world: world.rank, size=3) == [0, 1, 2]
