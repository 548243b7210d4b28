"""The jobs of this user that are known on this machine: those that run, and the detached ones that have ended."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hvdrun.errors import UsageError
from hvdrun.jobs.errors import JobNotFoundError
from hvdrun.jobs.folder import JobFolder, list_expired, list_folders
from hvdrun.jobs.locations import Locations, find_locations
from hvdrun.jobs.questions import Question, SilentJobError, ask, find_launcher, list_jobs
from hvdrun.jobs.record import JobRecord, join_words

LAST = "last"
ANSWER_SECONDS = 1.0
_NAMED_JOBS = 8  # that a sentence names
_COMMAND_WIDTH = 40


class JobState(StrEnum):
    """Whether a job runs, as far as this machine knows."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # its launcher was killed
    ELSEWHERE = "elsewhere"  # on another machine, which knows more


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job and its state.

    folder: of a detached job; None for another one.
    pid: of its launcher; 0 where it is in another container; None where it has ended, or takes no connection.
    exit_code: hvdrun's; None while it runs, and where nobody knows.
    ended: when it ended, in seconds since 1970; of a lost job, when it wrote last.
    seconds: how long it ran, where its end says that.
    """

    record: JobRecord
    state: JobState
    folder: JobFolder | None = None
    pid: int | None = None
    exit_code: int | None = None
    ended: float | None = None
    seconds: float | None = None

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.job

    @property
    def path(self) -> Path:
        """The folder of a detached job."""
        if self.folder is None:
            raise TypeError(f"the job {self.name} has no folder")
        return self.folder.path

    @property
    def duration_seconds(self) -> float:
        """How long it runs, or ran."""
        if self.ended is None:
            return self.record.age_seconds
        return max(0.0, self.ended - self.record.begun) if self.seconds is None else self.seconds

    def describe(self) -> str:
        """The job's name, with the first words of the command."""
        words = join_words(self.record.command)
        if not words:
            return self.name
        return f"{self.name} ({words if len(words) <= _COMMAND_WIDTH else f'{words[:_COMMAND_WIDTH].rstrip()} ...'})"


def look_at(folder: JobFolder) -> KnownJob | None:
    """How a detached job is now; None if it was removed."""
    record = folder.read_record()
    if record is None:
        return None
    pid = folder.find_launcher()  # before the end is read: a launcher writes it before it goes
    if (end := folder.read_end()) is not None:
        return KnownJob(record, JobState.ENDED, folder, None, end.exit_code, end.time, end.seconds)
    if pid is not None:
        return KnownJob(record, JobState.RUNNING, folder, pid)
    return KnownJob(record, JobState.LOST, folder, None, None, folder.last_change())


def find_jobs() -> list[KnownJob]:
    """All jobs, in the order in which they began."""
    locations = find_locations(os.environ)
    detached = list(_find_detached(locations))
    names = {job.name for job in detached}
    attached = [job for name in list_jobs() if name not in names and (job := _ask(name)) is not None]
    elsewhere = [
        KnownJob(JobRecord(job, (), begun=begun, machine=machine, boot="", is_detached=True), JobState.ELSEWHERE)
        for job, machine, begun in locations.list_elsewhere()
    ]
    return sorted([*detached, *attached, *elsewhere], key=lambda job: job.record.begun)


def _find_detached(locations: Locations) -> Iterator[KnownJob]:
    if locations.is_safe():
        for folder in list_folders(locations.folders):
            if (job := look_at(folder)) is not None:
                yield job


def _ask(name: str) -> KnownJob | None:
    """A job that has no folder in this user's locations; None if it has ended, or is another user's."""
    try:
        document = ask(name, Question.RECORD, ANSWER_SECONDS)
        if document is None:
            return None
        record = JobRecord.decode(document)
    except SilentJobError as error:
        return KnownJob(JobRecord(name, (), size=0, begun=0.0), JobState.RUNNING, pid=error.pid or None)
    except (ValueError, TypeError):  # a hvdrun of another version
        record = JobRecord(name, (), size=0, begun=0.0)
    if record.folder and (job := look_at(JobFolder(Path(record.folder)))) is not None:
        return job  # another XDG_STATE_HOME has it
    return KnownJob(record, JobState.RUNNING, pid=find_launcher(name))


def choose(name: str, jobs: Sequence[KnownJob], example: str, kind: str = "job") -> KnownJob:
    """The job that is meant.

    Args:
        name: the beginning of its name, or `last`; "" for the only one that runs.
        jobs: those that may be meant, in the order in which they began.
        example: the words before a name, for the error.
        kind: what all these jobs are, for the error.

    Raises:
        JobNotFoundError, UsageError: there is none, or there are several.
    """
    if name == LAST:
        meant = [job for job in jobs if job.state is not JobState.ELSEWHERE][-1:]
    elif name:
        meant = [job for job in jobs if job.name == name] or [job for job in jobs if job.name.startswith(name)]
    else:
        meant = [job for job in jobs if job.state is JobState.RUNNING]
    if not meant:
        if not name:
            raise JobNotFoundError(kind, "runs")
        raise JobNotFoundError(kind if name == LAST else f"job {name}")
    if len(meant) > 1:
        listed = ", ".join(job.describe() for job in meant[-_NAMED_JOBS:])
        kind = f"jobs begin with {name}" if name else "jobs run on this machine"
        raise UsageError(f"{len(meant)} {kind}: {listed}: name one, as in {example} {meant[-1].name}.")
    return meant[0]


def remove_expired(locations: Locations) -> None:
    """Remove the folders of jobs that have ended long ago, or are too many."""
    for folder in list_expired(locations.folders, time.time()):
        remove(locations, folder)


def remove(locations: Locations, folder: JobFolder) -> None:
    """Remove what is kept of a job that has ended."""
    folder.remove()
    with suppress(OSError):  # another machine has the file
        locations.forget(folder.job)
