"""What a job's time was spent on: sums, goodput, recoveries, and who is named as the one that others waited for."""

from dataclasses import replace
from typing import Any

import pytest

from hvdrun.accounts.history import Loss
from hvdrun.accounts.report import PARTS, Straggler, compute_goodput, find_recovery, find_stragglers, split
from rendezvous.core.outcome import blame_worker
from rendezvous.wire.accounts import Account, RecoveryTime
from tests.hvdrun.accounts.accounts import STEPS, make_worker, train

WORKER = make_worker(0)


def find(accounts: list[Account]) -> list[Straggler]:
    return find_stragglers([(each.worker.slot.index, each) for each in accounts], lambda rank: f"host of {rank}")


def find_ranks(accounts: list[Account]) -> list[int]:
    return [each.rank for each in find(accounts)]


def test_the_parts_of_an_account_and_the_unknown_sum_to_its_total() -> None:
    given: dict[str, Any] = {f"{part}_seconds": float(number) for number, part in enumerate(PARTS, 1)}
    parts = split(replace(Account(WORKER, is_measured=True, total_seconds=50.0), **given))
    assert (parts["start"], parts["idle"], parts["unknown"]) == (1.0, 9.0, 5.0)
    assert sum(parts.values()) == 50.0


def test_goodput_is_the_share_of_steps_that_count() -> None:
    good = Account(WORKER, total_seconds=100.0, compute_seconds=50.0, waiting_seconds=20.0, communication_seconds=10.0)
    wasted = Account(WORKER, total_seconds=100.0, start_seconds=20.0, repeated_seconds=30.0, compute_seconds=40.0)
    assert compute_goodput([good]) == 0.8
    assert compute_goodput([good, wasted]) == 0.6
    assert compute_goodput([]) is None
    assert compute_goodput([Account(WORKER)]) is None


def test_a_recovery_takes_as_long_as_the_slowest_worker() -> None:
    loss = Loss(10.0, blame_worker(WORKER, 0, -9), 0.5, continued_at=13.0, generation=2)
    times = (RecoveryTime(2, 1.0, 0.2, 0.0), RecoveryTime(2, 0.5, 0.4, 3.0), RecoveryTime(3, 9.0, 9.0, 9.0))
    parts = find_recovery(loss, [Account(WORKER, recoveries=(each,)) for each in times])
    assert parts is not None
    assert (parts.detect, parts.reform, parts.state, parts.replay) == (0.5, 1.0, 0.4, 3.0)
    unmeasured = find_recovery(loss, [])
    assert unmeasured is not None
    assert (unmeasured.reform, unmeasured.state, unmeasured.replay) == (3.0, None, None)
    assert find_recovery(replace(loss, continued_at=None), []) is None


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_is_named_with_its_cost(size: int, seed: int) -> None:
    slow = size - 2
    accounts = train(size, {slow: 0.05}, 0.005, seed)
    (found,) = find(accounts)
    assert (found.rank, found.host, found.of) == (slow, f"host of {slow}", STEPS)
    assert found.last > STEPS * 0.9
    assert STEPS * 0.04 < found.seconds < STEPS * 0.06


@pytest.mark.parametrize("size", [3, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_two_slow_ranks_are_both_named(size: int, seed: int) -> None:
    accounts = train(size, {0: 0.06, 2: 0.06}, 0.01, seed)
    assert sorted(find_ranks(accounts)) == [0, 2]


@pytest.mark.parametrize("jitter", [0.005, 0.05, 0.2])
@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("seed", range(10))
def test_no_rank_of_a_healthy_job_is_named_however_busy_its_machine(size: int, seed: int, jitter: float) -> None:
    assert find_ranks(train(size, {}, jitter, seed)) == []


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
def test_a_machine_that_holds_up_one_rank_for_a_while_names_no_rank(size: int) -> None:
    assert [find_ranks(train(size, {}, 0.01, seed, bursts=0.5)) for seed in range(30)] == [[]] * 30


@pytest.mark.parametrize("size", [2, 4, 16])
def test_a_rank_that_is_late_in_few_steps_is_not_named(size: int) -> None:
    assert find_ranks(train(size, {0: 2.0}, 0.001, 1, every=50)) == []


def test_a_rank_that_costs_little_is_not_named() -> None:
    assert find_ranks(train(4, {1: 0.003}, 0.0001, 1)) == []


def test_a_worker_that_took_the_place_of_a_lost_one_doubles_nothing() -> None:
    whole = train(3, {0: 0.05}, 0.001, 1)
    halves = [
        replace(
            account,
            total_seconds=account.total_seconds / 2,
            waited_for=tuple(
                replace(each, seconds=each.seconds / 2, steps=each.steps // 2) for each in account.waited_for
            ),
        )
        for account in (whole[2], whole[2])
    ]
    (found,) = find([*whole[:2], *halves])
    assert found.rank == 0
    assert STEPS * 0.04 < found.seconds < STEPS * 0.06


def communicate(*seconds: float, steps: int = STEPS) -> list[Account]:
    """Accounts of ranks that were blocked so long in their communication, after all had asked for it."""
    return [
        Account(make_worker(rank), is_measured=True, total_seconds=75.0, communication_seconds=blocked, steps=steps)
        for rank, blocked in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    ("seconds", "late"),
    [
        ((29.4, 29.4, 2.4), {2: 27.0}),
        ((4.0, 12.0), {0: 8.0}),
        ((20.0, 2.0, 20.0, 2.0), {1: 18.0, 3: 18.0}),
        ((6.9, 6.8, 7.1), {}),
        ((26.8, 16.8, 26.8), {1: 10.0}),  # of a large model: what it is late by is a third of the communication
        ((24.0, 30.0), {}),  # communicates quicker than the other, as healthy ranks do where one sends to all
        ((3.0, 0.1), {}),  # costs little
        ((10.0,), {}),
    ],
)
def test_a_rank_that_comes_late_to_the_communication_is_named(
    seconds: tuple[float, ...], late: dict[int, float]
) -> None:
    found = find(communicate(*seconds))
    assert {each.rank: pytest.approx(each.seconds) for each in found} == late
    assert not any(each.last for each in found)


def test_a_worker_that_joined_late_has_not_come_late_to_the_communication() -> None:
    first, second = communicate(20.0, 20.0)
    (joined,) = communicate(2.0, steps=STEPS // 10)
    assert find([first, second, replace(joined, worker=make_worker(2))]) == []


def test_a_rank_that_continues_alone_has_not_come_late_to_the_communication() -> None:
    (alone,) = communicate(20.0)
    lost = communicate(20.0, 20.0, steps=STEPS // 5)[1]
    assert find([alone, lost]) == []


@pytest.mark.parametrize("seed", range(10))
def test_no_rank_of_a_healthy_job_is_named_because_another_one_was_there_for_a_while(seed: int) -> None:
    assert find_ranks([*train(2, {}, 0.05, seed), *train(3, {}, 0.05, seed, steps=STEPS // 10)]) == []


def test_a_rank_is_named_once_with_both_of_its_costs() -> None:
    accounts = train(2, {1: 0.05}, 0.001, 1)
    both = [replace(each, communication_seconds=10.0 - 9.0 * rank) for rank, each in enumerate(accounts)]
    (found,) = find(both)
    assert found.rank == 1
    assert found.last > STEPS * 0.9
    assert found.seconds == pytest.approx(find(accounts)[0].seconds + 9.0)
