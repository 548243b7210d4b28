"""The server is killed at any step of any job, and begins again with its state: the job continues, or ends."""

import random
from itertools import product

import pytest

from tests.rendezvous.core.restarts import KINDS, Kill

HISTORIES = 60
STRIDE, AT_NIGHT = 10, 3  # each step of this many is one at which the server is killed
LONGEST = 160  # events of a history before all cooperate


def live_through(seed: int, kills: dict[int, Kill]) -> None:
    """One history, in which the server is killed at these events."""
    try:
        KINDS[seed % len(KINDS)](seed).die(kills)
    except AssertionError as error:
        error.add_note(f"in the history with seed {seed}, with {kills}")
        raise


@pytest.mark.timeout(280)  # on a busy machine
@pytest.mark.parametrize("stride", [STRIDE, pytest.param(AT_NIGHT, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_server_that_is_killed_at_any_step_leaves_a_job_that_continues_or_ends(kind: int, stride: int) -> None:
    for seed in range(kind, HISTORIES, len(KINDS)):
        for event, kill in product(range(seed % stride, KINDS[kind](seed).length, stride), Kill):
            live_through(seed, {event: kill})


@pytest.mark.timeout(280)  # on a busy machine
@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 1000), marks=pytest.mark.nightly)], ids=str)
def test_a_server_that_is_killed_again_and_again_leaves_a_job_that_continues_or_ends(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(f"kills {seed}")  # noqa: S311 - a seed that can be repeated, not a secret
        share = chance.choice([0.02, 0.1, 0.5])
        live_through(seed, {event: chance.choice(list(Kill)) for event in range(LONGEST) if chance.random() < share})
