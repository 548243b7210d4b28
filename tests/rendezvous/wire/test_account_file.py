"""What an agent makes of the file in which a worker counts its time."""

from array import array
from pathlib import Path

import pytest

from rendezvous.core.model import Slot, Worker
from rendezvous.wire.account_file import (
    BEGAN,
    BYTES,
    ITEM_BYTES,
    LAYOUT,
    LAYOUT_NUMBER,
    MOST_RECOVERIES,
    MOST_WAITED_FOR,
    PRESENT,
    RECOVERIES,
    RECOVERY_TIMES,
    RECOVERY_VALUES,
    SINCE,
    STEPS,
    WAITED_SECONDS,
    WAITED_STEPS,
    Part,
    read_account,
)
from rendezvous.wire.accounts import Account, WaitedFor

WORKER = Worker(Slot("a", 0), 1)
PARTS = ("start", "compute", "waiting", "communication", "commit", "checkpoint", "recovery", "repeated", "idle")


def make_values(**parts: float) -> "array[float]":
    """A file of a worker that has counted from 2 to 10 and waits since then."""
    values = array("d", bytes(BYTES))
    values[LAYOUT], values[BEGAN], values[SINCE], values[PRESENT] = LAYOUT_NUMBER, 2.0, 10.0, Part.WAITING
    for name, seconds in parts.items():
        values[Part[name.upper()]] = seconds
    return values


def read(path: Path, values: "array[float]", *, has_ended: bool = False) -> Account:
    """The account at 11.0 of a worker that was started at 1.0."""
    path.write_bytes(values.tobytes())
    return read_account(path, WORKER, 1.0, 11.0, has_ended=has_ended)


def sum_parts(account: Account) -> float:
    """The seconds that are known."""
    return float(sum(getattr(account, f"{part}_seconds") for part in PARTS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a worker."""
    return tmp_path / "account"


def test_the_part_that_lasts_is_counted_until_now(path: Path) -> None:
    account = read(path, make_values(start=3.0, waiting=2.0, compute=1.0))
    assert (account.is_measured, account.has_ended, account.total_seconds) == (True, False, 10.0)
    assert (account.start_seconds, account.waiting_seconds, account.compute_seconds) == (4.0, 3.0, 1.0)
    assert account.total_seconds - sum_parts(account) == 2.0


def test_the_parts_of_a_worker_are_never_more_than_its_total(path: Path) -> None:
    account = read(path, make_values(start=8.0 + 1e-9))
    assert account.total_seconds == sum_parts(account) > 10.0
    assert not read(path, make_values(start=10.0)).is_measured


@pytest.mark.parametrize(
    ("steps", "present", "compute"), [(0, Part.PENDING, 0.0), (5, Part.PENDING, 3.0), (5, Part.IDLE, 0.0)]
)
def test_the_programs_own_code_is_compute_in_a_step_alone(
    path: Path, steps: int, present: Part, compute: float
) -> None:
    values = make_values(pending=2.0)
    values[STEPS], values[PRESENT] = steps, present
    assert read(path, values).compute_seconds == compute


def test_the_ranks_that_were_waited_for_longest_are_named(path: Path) -> None:
    values = make_values()
    for rank in range(100):
        values[WAITED_SECONDS + rank], values[WAITED_STEPS + rank] = rank, 2 * rank
    assert read(path, values).waited_for == tuple(
        WaitedFor(rank, rank, 2 * rank) for rank in range(100 - MOST_WAITED_FOR, 100)
    )


def test_the_latest_recoveries_are_in_their_order(path: Path) -> None:
    values = make_values()
    values[RECOVERIES] = MOST_RECOVERIES + 2
    for number in range(MOST_RECOVERIES + 2):
        place = RECOVERY_TIMES + number % MOST_RECOVERIES * RECOVERY_VALUES
        values[place : place + RECOVERY_VALUES] = array("d", [number, 0.1, 0.2, 0.3])
    found = read(path, values).recoveries
    assert [each.generation for each in found] == list(range(2, MOST_RECOVERIES + 2))
    assert {(each.reform_seconds, each.state_seconds, each.replay_seconds) for each in found} == {(0.1, 0.2, 0.3)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        make_values().tobytes()[:-ITEM_BYTES],
        make_values().tobytes() + b"x",
        make_values(start=float("nan")).tobytes(),
        make_values(start=float("inf")).tobytes(),
        make_values(start=-1.0).tobytes(),
        make_values(start=1e300).tobytes(),
        bytes(BYTES),
    ],
)
def test_a_file_of_something_else_gives_the_total_alone(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    plain = Account(WORKER, has_ended=True, total_seconds=10.0)
    assert read_account(path, WORKER, 1.0, 11.0, has_ended=True) == plain


def test_a_worker_without_a_file_has_a_total(path: Path) -> None:
    assert read_account(path, WORKER, 1.0, 11.0) == Account(WORKER, total_seconds=10.0)
    path.symlink_to(__file__)
    assert not read_account(path, WORKER, 1.0, 11.0).is_measured
