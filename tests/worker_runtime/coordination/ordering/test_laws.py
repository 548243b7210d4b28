"""What holds in every history of every job: stated in `Checker`, tried with Hypothesis and with plain chance."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.seeds import list_seeds
from tests.worker_runtime.coordination.ordering.checker import Name
from tests.worker_runtime.coordination.ordering.programs import Join, Trouble, write_job
from tests.worker_runtime.coordination.ordering.simulation import Simulation
from worker_runtime.coordination.ordering.requests import Kind

LEAST_OF_EACH_KIND = 800  # in 2,000 histories
EVENTS = (
    "blocked",
    "left",
    "failure",
    "released with joined",
    "released in overlapping sets",
    "refused: has been shut down",
    "refused: has been removed",
    "refused: with Join",
    "refused: before anything was sent",
    "refused: every rank waits",
    "refused: Mismatched",
)
chances = st.randoms(use_true_random=False, note_method_calls=False)


@settings(max_examples=30)
@given(chance=chances)
def test_every_history_holds_the_laws(chance: random.Random) -> None:
    Simulation(write_job(chance), chance, careful=True).run()


@settings(max_examples=20)
@given(chance=chances)
def test_results_do_not_depend_on_the_order_of_messages(chance: random.Random) -> None:
    compare_two_runs(chance)


@pytest.mark.parametrize("seeds", list_seeds(), ids=str)
def test_results_do_not_depend_on_the_order_of_messages_in_many_seeds(seeds: range) -> None:
    for seed in seeds[::8]:
        with noting(seed):
            compare_two_runs(make_chance(seed))


@pytest.mark.timeout(280)  # on a busy machine
@pytest.mark.parametrize("seeds", list_seeds(), ids=str)
def test_many_histories_hold_the_laws_and_show_every_kind_of_event(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = make_chance(seed)
        with noting(seed):
            counts += Simulation(write_job(chance), chance, careful=False).run().checker.counts
    for event, count in counts.most_common():
        print(f"{count:>8} {event}")  # noqa: T201 - pytest shows it when this fails, and with -s
    events = (*EVENTS, *(f"{kind.name} released" for kind in Kind if kind is not Kind.FAIL))
    least = LEAST_OF_EACH_KIND * len(seeds) // 2000
    rare = {"failure": least // 10, "refused: has been removed": least // 2}  # once in a history
    assert {event: counts[event] for event in events if counts[event] < rare.get(event, least)} == {}


@pytest.mark.parametrize("seed", range(5))
def test_a_history_repeated_is_the_same(seed: int) -> None:
    def run() -> list[object]:
        chance = make_chance(seed)
        simulation = Simulation(write_job(chance), chance, careful=True).run()
        return [rank.results for rank in simulation.ranks] + [simulation.checker.counts]

    assert run() == run()


def make_chance(seed: int) -> random.Random:
    """What decides a history."""
    return random.Random(seed)  # noqa: S311 - a seed that can be repeated, not a secret


@contextlib.contextmanager
def noting(seed: int) -> Iterator[None]:
    """Say which history has failed."""
    try:
        yield
    except (AssertionError, LookupError, ValueError) as error:
        error.add_note(f"in the history with seed {seed}")
        raise


def compare_two_runs(chance: random.Random) -> None:
    """One job twice, with the messages in other orders: each rank's n-th operation of a name ends alike.

    It is no law for a rank that leaves before it has joined, or is lost: what the others ask meanwhile may be answered
    before or after.
    """
    job = write_job(chance, [trouble for trouble in Trouble if trouble is not Trouble.LOSS])
    if job.trouble is Trouble.EARLY_LEAVE and any(isinstance(step, Join) for step in chain(*job.programs)):
        return
    one, other = (Simulation(job, chance, careful=False).run() for _ in range(2))
    for mine, theirs in zip(one.ranks, other.ranks, strict=True):
        assert group(mine.results) == group(theirs.results)


def group(results: Iterable[tuple[Name, str]]) -> dict[Name, list[str]]:
    """The results on a rank's operations of each name, in their order."""
    groups: dict[Name, list[str]] = {}
    for name, result in results:
        groups.setdefault(name, []).append(result)
    return groups
