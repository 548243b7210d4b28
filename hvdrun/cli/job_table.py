"""What `hvdrun ps` prints of jobs: a table, or all that is known."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from hvdrun.console.page import describe_seconds
from hvdrun.jobs.known import JobState, KnownJob
from hvdrun.jobs.record import join_words

_HEADINGS = ("JOB", "STATE", "BEGUN", "TIME", "WORKERS", "COMMAND")


def describe(job: KnownJob) -> dict[str, Any]:
    """All that is known of a job, for JSON."""
    folder = None if job.folder is None else str(job.folder.path)
    known = {"state": job.state, "exit_code": job.exit_code, "ended": job.ended, "pid": job.pid, "folder": folder}
    return {**asdict(job.record), **known}


def make_table(jobs: Iterable[KnownJob]) -> str:
    """A line for each job; the last column is as wide as it likes."""
    rows = [_HEADINGS, *map(_make_row, jobs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _make_row(job: KnownJob) -> tuple[str, ...]:
    record = job.record
    if job.state is JobState.ELSEWHERE:
        return job.name, f"on {record.machine}", tell_time(record.begun), "", "", ""
    state: str = job.state
    if job.exit_code is not None:
        state = f"exit {job.exit_code}"
    elif job.state is JobState.RUNNING and not record.is_detached:
        state = "attached"
    duration = describe_seconds(job.duration_seconds) if record.begun else ""
    return job.name, state, tell_time(record.begun), duration, str(record.size or ""), join_words(record.command)


def tell_time(seconds: float) -> str:
    """A time, in seconds since the epoch, as this place has it; empty for 0, which is not known."""
    if not seconds:
        return ""
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
