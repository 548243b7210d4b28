"""The command lines of `hvdrun ps`, `hvdrun wait` and `hvdrun stop`."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

from hvdrun.console.page import describe_seconds
from hvdrun.jobs.errors import JobAttachedError, JobElsewhereError, LauncherLostError, OtherContainerError
from hvdrun.jobs.known import JobState, KnownJob, choose, find_jobs, look_at
from hvdrun.jobs.questions import find_launcher
from hvdrun.jobs.record import join_words
from hvdrun.options.option import RawValues
from hvdrun.options.programs import JOB_PROGRAMS

Say = Callable[[str], None]  # prints a sentence on standard error
Page = tuple[str, int]  # for standard output, and the exit code

INTERRUPTED = 130
_LISTED_SECONDS = 24 * 3600.0  # how long ago a job may have ended that is listed without --all
_LOOK_SECONDS = 0.2  # between two looks whether a job has ended
_HEADINGS = ("JOB", "STATE", "BEGUN", "TIME", "WORKERS", "COMMAND")


def run(name: str, words: Sequence[str], say: Say) -> Page:
    """Run one of these programs.

    Raises:
        HvdrunError: the command line is wrong, or there is no such job.
    """
    program = JOB_PROGRAMS[name]
    given = program.parse(words)
    if "help" in given:
        from hvdrun.options.pages import render_program_help  # noqa: PLC0415 - few ask for it

        return render_program_help(program), 0
    return _PROGRAMS[name](given, say)


def list_all(given: Mapping[str, RawValues], _: Say) -> Page:
    """`hvdrun ps`."""
    now = time.time()
    jobs = [job for job in find_jobs() if "all" in given or job.ended is None or now - job.ended < _LISTED_SECONDS]
    if "json" in given:
        return json.dumps({"version": 1, "jobs": list(map(describe, jobs))}, indent=1), 0
    return render([_HEADINGS, *(_make_row(job, now) for job in jobs)]), 0


def wait(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun wait`."""
    job = find_detached(given, "wait", "exit code")
    with answer_interrupt(job, say) as interrupt:
        while job.state is JobState.RUNNING and not interrupt:
            time.sleep(_LOOK_SECONDS)
            job = look_again(job)
    if interrupt:
        return "", INTERRUPTED
    return "", find_exit_code(job)


def stop(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun stop`."""
    job = _find(given, "stop", find_jobs())
    if job.state is JobState.LOST:
        find_exit_code(job)
    if job.state is JobState.ENDED:
        say(f"the job {job.name} has ended already, with exit code {job.exit_code}")
        return "", 0
    if not job.pid:
        raise OtherContainerError(job.name)
    with suppress(ProcessLookupError):  # it has ended meanwhile
        launcher = os.pidfd_open(job.pid)
        if _find_launcher(job) == job.pid:  # else another process has this pid
            for number in (signal.SIGTERM, signal.SIGCONT):  # perhaps Ctrl-Z has stopped it
                signal.pidfd_send_signal(launcher, number)
            say(f"stopping the job {job.name}; hvdrun stop {job.name} again ends it at once")
            with answer_interrupt(job, say) as interrupt:
                while not interrupt and not select.select([launcher], [], [], _LOOK_SECONDS)[0]:
                    pass
            if interrupt:
                return "", INTERRUPTED
    return "", 0


_PROGRAMS: Mapping[str, Callable[[Mapping[str, RawValues], Say], Page]] = {"ps": list_all, "wait": wait, "stop": stop}


def find_detached(given: Mapping[str, RawValues], name: str, thing: str) -> KnownJob:
    """The detached job of this machine that is meant.

    Args:
        given: the values of the command line.
        name: of the program.
        thing: what a job has only if it is detached.

    Raises:
        HvdrunError: there is none.
    """
    jobs = find_jobs()
    asked = str(given.get("job", ""))
    detached = [job for job in jobs if job.record.is_detached]
    if asked and not any(job.name.startswith(asked) for job in detached) and asked != "last":
        detached = jobs
    job = _find(given, name, detached)
    if not job.record.is_detached:
        raise JobAttachedError(job.name, thing)
    return job


def _find(given: Mapping[str, RawValues], name: str, jobs: Sequence[KnownJob]) -> KnownJob:
    job = choose(str(given.get("job", "")), jobs, f"hvdrun {name}")
    if job.state is JobState.ELSEWHERE:
        raise JobElsewhereError(job.name, job.record.machine, f"hvdrun {name} {job.name}")
    return job


def look_again(job: KnownJob) -> KnownJob:
    """How a detached job is now; as before, if it was removed."""
    if job.folder is None:
        return job
    return look_at(job.folder) or job


def find_exit_code(job: KnownJob) -> int:
    """The exit code of a job that has ended.

    Raises:
        LauncherLostError: nobody knows it.
    """
    if job.exit_code is not None:
        return job.exit_code
    how = f"was killed; it wrote last at {_tell_time(job.ended or 0)}"
    if job.record.has_lost_its_machine:
        how = f"ended with its machine, which has been started again; it wrote last at {_tell_time(job.ended or 0)}"
    raise LauncherLostError(job.name, how)


@contextmanager
def answer_interrupt(job: KnownJob, say: Say) -> Iterator[list[int]]:
    """Ctrl-C leaves a job that runs, and says how to stop it; what is yielded is empty until then."""
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        if not pressed:
            say(f"the job {job.name} goes on: hvdrun stop {job.name} stops it")
        pressed.append(number)

    former = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, former)


def describe(job: KnownJob) -> dict[str, Any]:
    """All that is known of a job, for JSON."""
    folder = None if job.folder is None else str(job.folder.path)
    known = {"state": job.state, "exit_code": job.exit_code, "ended": job.ended, "pid": job.pid, "folder": folder}
    return {**asdict(job.record), **known}


def render(rows: Sequence[Sequence[str]]) -> str:
    """A table, whose last column is as wide as it likes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _make_row(job: KnownJob, now: float) -> tuple[str, ...]:
    record = job.record
    if job.state is JobState.ELSEWHERE:
        return job.name, f"on {record.machine}", _tell_time(record.begun), "", "", ""
    state: str = job.state
    if job.exit_code is not None:
        state = f"exit {job.exit_code}"
    elif job.state is JobState.RUNNING and not record.is_detached:
        state = "attached"
    duration = describe_seconds((job.ended or now) - record.begun)
    return job.name, state, _tell_time(record.begun), duration, str(record.size), join_words(record.command)


def _tell_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"


def _find_launcher(job: KnownJob) -> int | None:
    if job.folder is None:
        return find_launcher(job.name)
    return job.folder.find_launcher()
