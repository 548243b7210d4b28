"""Which job a name means."""

import pytest

from hvdrun.errors import UsageError
from hvdrun.jobs.errors import JobNotFoundError
from hvdrun.jobs.known import JobState, KnownJob, choose
from hvdrun.jobs.record import JobRecord

RUNNING, ENDED, ELSEWHERE = (
    KnownJob(JobRecord(name, ("python", "train.py", "--epochs", "90", "--batch-size", "256")), state)
    for name, state in (("c0ffee", JobState.RUNNING), ("c0de", JobState.ENDED), ("beef", JobState.ELSEWHERE))
)
JOBS = (RUNNING, ENDED, ELSEWHERE)


@pytest.mark.parametrize(
    ("name", "job"), [("", RUNNING), ("c0f", RUNNING), ("c0de", ENDED), ("b", ELSEWHERE), ("last", ENDED)]
)
def test_a_name_means_one_job(name: str, job: KnownJob) -> None:
    assert choose(name, JOBS, "hvdrun wait") is job


def test_a_whole_name_is_no_beginning() -> None:
    longer = KnownJob(JobRecord("c0de1", ()), JobState.RUNNING)
    assert choose("c0de", (*JOBS, longer), "hvdrun wait") is ENDED


def test_several_jobs_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        choose("c0", JOBS, "hvdrun wait")
    assert str(caught.value) == (
        "2 jobs begin with c0: c0ffee (python train.py --epochs 90 --batch-size ...), "
        "c0de (python train.py --epochs 90 --batch-size ...): name one, as in hvdrun wait c0de."
    )


@pytest.mark.parametrize(
    ("name", "jobs", "begin"),
    [
        ("dead", JOBS, "no job dead of this user is known on this machine: "),
        ("", (ENDED,), "no detached job of this user runs on this machine: "),
        ("last", (), "no detached job of this user is known on this machine: "),
    ],
)
def test_a_name_may_mean_no_job(name: str, jobs: tuple[KnownJob, ...], begin: str) -> None:
    with pytest.raises(JobNotFoundError) as caught:
        choose(name, jobs, "hvdrun wait", "detached job")
    assert str(caught.value).startswith(begin)
