"""Which failure is raised, and what the results are."""

import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryFile

import pytest

import hvdrun
from hvdrun.cluster.cluster import Answers, collect
from hvdrun.cluster.errors import JobRefusedError
from hvdrun.cluster.launcher_child import LauncherChild
from hvdrun.tasks.messages import INLINE_BYTES, Body, Delivered, Ended, Refused

GOOD = Ended(succeeded=True, exit_code=0, reason="all workers ended well")
DEAD = Ended(succeeded=False, exit_code=7, reason="rank 1 (a:1) failed with exit code 7", rank=1, returncode=7)


def result(rank: int) -> Delivered:
    return Delivered(rank, 1, failed=False, follows_another=False, body=Body(pickle.dumps(rank * 10)))


def failure(rank: int, *, follows: bool = False) -> Delivered:
    reported = ("KeyError", "", "", pickle.dumps(KeyError(rank)))
    return Delivered(rank, 1, failed=True, follows_another=follows, body=Body(pickle.dumps(reported)))


def read(*delivered: Delivered, end: Ended | Refused | None = None, is_elastic: bool = False) -> list[object]:
    return Answers(list(delivered), end).read(2, is_elastic=is_elastic)


def test_results_are_in_the_order_of_the_ranks_and_of_an_elastic_job_those_that_there_are() -> None:
    assert read(result(1), result(0)) == [0, 10]
    assert read(result(1), failure(0), end=GOOD, is_elastic=True) == [10]


@pytest.mark.parametrize(
    ("delivered", "end", "rank"),
    [
        ((failure(1), failure(0)), None, 1),
        ((failure(0, follows=True), failure(1)), None, 1),
        ((failure(1), failure(0, follows=True)), DEAD, 1),
        ((failure(0, follows=True), result(1)), None, 0),  # the other has left the job, and is well
    ],
)
def test_the_first_failure_is_raised_that_does_not_follow_from_another(
    delivered: tuple[Delivered, ...], end: Ended | None, rank: int
) -> None:
    with pytest.raises(KeyError, match=str(rank)):
        read(*delivered, end=end)


def test_the_end_of_the_job_is_the_cause_of_what_follows_from_it() -> None:
    with pytest.raises(hvdrun.JobEndedError, match=r"^rank 1 \(a:1\) failed with exit code 7\.$") as caught:
        read(failure(0, follows=True), end=DEAD)
    assert (caught.value.rank, caught.value.returncode) == (1, 7)


def test_a_job_that_ends_without_all_results_names_the_missing() -> None:
    with pytest.raises(hvdrun.JobEndedError, match="without the results of the ranks 1"):
        read(result(0), end=GOOD)


def test_a_job_that_cannot_be_launched_says_why() -> None:
    with pytest.raises(JobRefusedError, match="no way"):
        read(end=Refused(("no way", "b: closed"), 125))


def test_files_of_results_are_closed_whatever_becomes_of_them() -> None:
    with TemporaryFile() as file:
        file.write(pickle.dumps("x" * INLINE_BYTES))
        for others in ((result(1),), (failure(1),)):
            body = Body.of(file)
            large = Delivered(0, 1, failed=False, follows_another=False, body=body)
            with suppress(KeyError):
                read(large, *others)
            assert body.descriptor is not None
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(body.descriptor)


class InterruptedChild(LauncherChild):
    """Delivers one outcome; then Ctrl-C comes."""

    def __init__(self, outcome: Delivered) -> None:
        self._outcomes = [outcome]

    def messages(self, deadline: float | None = None) -> Iterator[Delivered | Ended | Refused | None]:
        """See `LauncherChild`."""
        del deadline
        if not self._outcomes:
            raise KeyboardInterrupt
        yield self._outcomes.pop()


def test_an_interruption_closes_the_outcomes_that_have_come() -> None:
    with TemporaryFile() as file:
        file.write(bytes(INLINE_BYTES + 1))
        body = Body.of(file)
    assert body.descriptor is not None
    with pytest.raises(KeyboardInterrupt):
        collect(InterruptedChild(Delivered(0, 1, failed=False, follows_another=False, body=body)), 2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(body.descriptor)
